import { defineConfig } from "vitest/config";

export default defineConfig({
  base: "./", // any folder of any web server
  build: { target: "es2022", assetsInlineLimit: 0, outDir: "dist", emptyOutDir: true },
  worker: { format: "es" },
  test: { testTimeout: 120_000 }, // no test measures time; a busy machine is slow
});
