import { readFile } from "node:fs/promises";
import start from "@mujoco/mujoco";
import { describe, expect, it } from "vitest";
import { JointPlant, type JointNumbers } from "../src/robots/joint_plant";
import { Pilot, type RobotController } from "../src/robots/pilot";
import type { Noise, Plant, World } from "../src/robots/plant";
import { QuadrotorPlant, type QuadrotorNumbers } from "../src/robots/quadrotor_plant";

const here = (name: string) => new URL(`../${name}`, import.meta.url);
const json = async (name: string) => JSON.parse(await readFile(here(name), "utf8"));
const recorded = (await json("tests/recorded.json")).robots;
const mujoco = await start();
const calm: World = { payload: 0, disturbance: 0, wind: 0, push: null };

async function controllerOf(name: string): Promise<RobotController> {
  const { Controller } = await import(`../src/controllers/${name}/${name}.mjs`);
  return new Controller(await WebAssembly.compile(await readFile(here(`src/controllers/${name}/${name}.wasm`))));
}

async function robot(name: "arm" | "quadrotor" | "file", noise: Noise): Promise<Pilot> {
  const numbers = await json(`src/controllers/robot_${name}.json`);
  const plant: Plant =
    name === "quadrotor"
      ? new QuadrotorPlant(mujoco, numbers as QuadrotorNumbers, noise)
      : new JointPlant(mujoco, numbers as JointNumbers, numbers.payload, noise);
  const context = (step: number) => {
    if (name !== "file") return step;
    const { position, rate, acceleration } = plant.path.at(step);
    return { step, reference: [...position, ...rate, ...acceleration] };
  };
  const pilot = new Pilot(await controllerOf(`robot_${name}`), plant, context);
  pilot.start(startOf(name, numbers.gains.soft));
  return pilot;
}

const startOf = (name: string, gains: any) => (name === "file" ? gains : { theta: gains });

describe.each(["arm", "quadrotor", "file"] as const)("the robot %s", (name) => {
  it("moves as Python's run does", async () => {
    const run = recorded[name];
    const draws: number[] = run.noise.flat();
    let drawn = 0;
    const pilot = await robot(name, () => draws[drawn++]!);
    const numbers = await json(`src/controllers/robot_${name}.json`);
    const steps = 50 * run.x.length;
    for (let step = 0; step < steps; step++) {
      const payload = step >= steps / 2 ? run.payload : (numbers.payload ?? 0);
      if (step % 50 === 0) {
        const wanted: number[] = run.x[step / 50];
        const truth = pilot.plant.truth();
        truth.forEach((value, i) => expect(value, `x[${i}] at step ${step}`).toBeCloseTo(wanted[i]!, 6));
      }
      pilot.step(step, { ...calm, payload }, null);
      if (step % 50 === 0) {
        pilot.control.forEach((value, i) => expect(value, `u[${i}] at step ${step}`).toBeCloseTo(run.u[step / 50][i], 5));
      }
    }
    expect(drawn).toBe(draws.length);
  });
});
