import { defineConfig } from "vite";

export default defineConfig({
  base: "./", // any folder of any web server
  build: { target: "es2022", assetsInlineLimit: 0, outDir: "dist", emptyOutDir: true },
  worker: { format: "es" },
});
