import { spawnSync } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import arm from "../src/controllers/robot_arm.json";
import gains from "../src/controllers/motor_gains.json";
import quadrotor from "../src/controllers/robot_quadrotor.json";
import { pythonScript as motorScript, tomlFile as motorToml } from "../src/motor/python";
import { pythonScript as paperScript, tomlFile as paperToml } from "../src/paper/python";
import type { Settings } from "../src/robots/panel";
import { fileScript, fileToml, robotScript, robotToml } from "../src/robots/scripts";

const python = process.env.SELFTUNE_PYTHON;

function call(cwd: string, ...parts: string[]): string {
  const done = spawnSync(python!, parts, { cwd, encoding: "utf8" });
  expect(done.stderr).not.toContain("Traceback");
  expect(done.status, done.stderr).toBe(0);
  return done.stdout;
}

/** Run a downloaded script, or with its TOML file `selftune run`. */
function run(name: string, script: string, toml: string | null = null): string {
  const cwd = mkdtempSync(join(tmpdir(), "playground-"));
  writeFileSync(join(cwd, `${name}.py`), script);
  if (toml === null) return call(cwd, `${name}.py`);
  writeFileSync(join(cwd, `${name}.toml`), toml);
  return call(cwd, "-m", "selftune", "run", `${name}.toml`);
}

const quick = (toml: string) => toml.replace(/^steps = .*$/m, "steps = 600").replace("seeds = 2", "seeds = 1");
const values: Settings = { start: "soft", speed: 1, payload: 0, wind: 0, disturbance: 0, seed: 0 };

describe.skipIf(!python)("a downloaded file", { timeout: 300_000 }, () => {
  for (const rule of ["mgaps", "mgaps_faster", "gauss_newton"] as const) {
    it(`runs the paper's example with ${rule}`, () => {
      // The faster rate suits a tenth of the noise: the gradient grows with its square.
      const noise = rule === "mgaps_faster" ? 0.01 : 0.1;
      const settings = { gain: 1, noise, period: 1000, steps: 4000, seed: 0 };
      const printed = run("paper_example", paperScript(settings, rule));
      expect(Number(/relative to the fixed gain: ([\d.]+)/.exec(printed)![1])).toBeLessThan(0.9);
      run("paper_example", paperScript(settings, rule), paperToml(settings, rule));
    });
  }

  it("runs the PID loop", () => {
    const script = motorScript(gains.nominal, { load: 0, inertia: 1.3, friction: 0 });
    expect(run("motor_pid", script)).toContain("Run of 12,000 steps");
    run("motor_pid", script, quick(motorToml()));
  });

  it("runs the arm", () => {
    const script = robotScript("arm", values);
    const printed = run("arm", script);
    const errors = [...printed.matchAll(/last lap ([\d.]+)/g)].map(([, error]) => Number(error));
    expect(errors[0]).toBeLessThan(errors[1]!);
    run("arm", script, quick(robotToml("arm", arm.settings, arm.gains.soft)));
  });

  it("runs the quadrotor", () => {
    const script = robotScript("quadrotor", { ...values, wind: 3 });
    const printed = run("quadrotor", script);
    const errors = [...printed.matchAll(/last lap ([\d.]+)/g)].map(([, error]) => Number(error));
    expect(errors[0]).toBeLessThan(errors[1]!);
    run("quadrotor", script, quick(robotToml("quadrotor", quadrotor.settings, quadrotor.gains.soft)));
  });

  it("runs the robot from its file", () => {
    expect(run("file", fileScript(values))).toContain("last lap");
    run("file", fileScript(values), quick(fileToml()));
  });
});
