import { spawnSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import gains from "../src/controllers/motor_gains.json";
import { pythonScript as motorScript } from "../src/motor/python";
import { pythonScript as paperScript } from "../src/paper/python";

const python = process.env.SELFTUNE_PYTHON;

function run(script: string): string {
  const cwd = mkdtempSync(join(tmpdir(), "playground-"));
  const done = spawnSync(python!, ["-"], { cwd, input: script, encoding: "utf8" });
  expect(done.stderr).not.toContain("Traceback");
  expect(done.status).toBe(0);
  return done.stdout;
}

describe.skipIf(!python)("a downloaded script", { timeout: 300_000 }, () => {
  for (const rule of ["mgaps", "mgaps_faster", "gauss_newton"] as const) {
    it(`runs the paper's example with ${rule}`, () => {
      // The faster rate suits a tenth of the noise: the gradient grows with its square.
      const noise = rule === "mgaps_faster" ? 0.01 : 0.1;
      const settings = { gain: 1, noise, period: 1000, steps: 4000, seed: 0 };
      const printed = run(paperScript(settings, rule));
      expect(Number(/relative to the fixed gain: ([\d.]+)/.exec(printed)![1])).toBeLessThan(0.9);
    });
  }

  it("runs the PID loop", () => {
    const printed = run(motorScript(gains.nominal, { load: 0, inertia: 1.3, friction: 0 }));
    expect(printed).toContain("Run of 12,000 steps");
  });
});
