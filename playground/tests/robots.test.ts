import { readFile } from "node:fs/promises";
import start from "@mujoco/mujoco";
import { describe, expect, it } from "vitest";
import { Random } from "../src/random";
import { JointPlant, type JointNumbers } from "../src/robots/joint_plant";
import { Pilot, type RobotController } from "../src/robots/pilot";
import type { Noise, Plant, Push, World } from "../src/robots/plant";
import { QuadrotorPlant, type QuadrotorNumbers } from "../src/robots/quadrotor_plant";

const here = (name: string) => new URL(`../${name}`, import.meta.url);
const json = async (name: string) => JSON.parse(await readFile(here(name), "utf8"));
const recorded = await json("tests/recorded_robots.json");
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

const still = (seed: number): Noise => {
  const random = new Random(seed);
  return () => random.normal();
};

/** Run for some seconds, and return the decisions of the guard. */
function run(pilot: Pilot, from: number, to: number, world: Partial<World> = {}, blind: number | null = null): Set<string> {
  const made = new Set<string>();
  const { dt } = pilot.plant;
  for (let step = Math.round(from / dt); step < Math.round(to / dt); step++) {
    pilot.step(step, { ...calm, payload: 0.2, ...world }, blind);
    pilot.controller.decisions().forEach((name) => made.add(name));
    expect(pilot.control.every(Number.isFinite)).toBe(true);
  }
  return made;
}

/** Run for a lap of 4 s, and return the mean cost. */
function lapCost(pilot: Pilot, from: number): number {
  let sum = 0;
  const { dt, path } = pilot.plant;
  const first = Math.round(from / dt);
  for (let step = first; step < first + path.lap; step++) {
    pilot.step(step, { ...calm, payload: 0.2 }, null);
    sum += pilot.controller.info.cost;
  }
  return sum / path.lap;
}

describe("an arm", () => {
  it("tunes itself from soft gains", async () => {
    const [own, held] = [await robot("arm", still(1)), await robot("arm", still(1))];
    held.controller.freeze();
    for (const pilot of [own, held]) run(pilot, 0, 8);
    expect(lapCost(own, 8)).toBeLessThan(0.4 * lapCost(held, 8));
    expect(own.error).toBeLessThan(held.error);
  });

  it("bridges a missing sensor, then uses the safe control until it is cleared", async () => {
    const pilot = await robot("arm", still(2));
    run(pilot, 0, 8);
    expect(run(pilot, 8, 8.3, {}, 0)).toContain("REFUSED");
    expect(run(pilot, 8.3, 14)).not.toContain("FAILSAFE");
    expect(pilot.error).toBeLessThan(0.05);
    const long = run(pilot, 14, 16, {}, 0);
    expect(long).toContain("FAILSAFE");
    expect([...pilot.control]).toEqual([0, 0]);
    pilot.controller.clear();
    run(pilot, 16, 26);
    expect(pilot.error).toBeLessThan(0.05);
  });

  it("rolls back if somebody shakes it, and recovers", async () => {
    const pilot = await robot("arm", still(3));
    run(pilot, 0, 12);
    const made = new Set<string>();
    for (let i = 0; i < 12; i++) {
      const push: Push = { body: pilot.plant.body(1), point: [0, 0, -0.35], force: [0, 0, i % 2 ? 25 : -25] };
      run(pilot, 12 + 0.25 * i, 12.25 + 0.25 * i, { push }).forEach((name) => made.add(name));
    }
    expect(made).toContain("EXPLODED");
    run(pilot, 15, 30);
    expect(pilot.error).toBeLessThan(0.02);
  });

  it("returns to its path after a crash", async () => {
    const pilot = await robot("arm", still(4));
    run(pilot, 0, 4);
    run(pilot, 4, 4.5, { push: { body: pilot.plant.body(0), point: [0, 0, -0.4], force: [900, 0, 0] } });
    expect(pilot.crashes).toBe(1);
    run(pilot, 4.5, 14);
    expect(pilot.crashes).toBe(1);
    expect(pilot.error).toBeLessThan(0.05);
  });
});

describe("a quadrotor", () => {
  it("stays near its path in the wind, and finds the payload's weight", async () => {
    const pilot = await robot("quadrotor", still(5));
    run(pilot, 0, 12, { payload: 0, wind: 3 });
    expect(pilot.crashes).toBe(0);
    expect(pilot.error).toBeLessThan(0.1);
    run(pilot, 12, 24, { payload: 0.01 });
    expect((1000 * pilot.controller.state.a_hat[5]!) / 9.81).toBeCloseTo(10, -1);
    expect(pilot.crashes).toBe(0);
  });
});
