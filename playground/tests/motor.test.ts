import { readFile } from "node:fs/promises";
import { describe, expect, it } from "vitest";
import gains from "../src/controllers/motor_gains.json";
import { Controller } from "../src/controllers/motor_pid/motor_pid.mjs";
import { Drive, PERIOD, referenceAt } from "../src/motor/simulation";

const url = new URL("../src/controllers/motor_pid/motor_pid.wasm", import.meta.url);
const module = await WebAssembly.compile(await readFile(url));
const world = { load: 0, inertia: 1, friction: 0.3 };
const low = { kp: gains.nominal.kp / 10, ki: gains.nominal.ki / 10, kd: gains.nominal.kd / 10 };

function meanCost(drive: Drive, seconds: number, from = 0): number {
  let sum = 0;
  const [begin, end] = [from / PERIOD, (from + seconds) / PERIOD];
  for (let step = begin; step < end; step++) {
    drive.step(step, referenceAt(step, 1), world);
    sum += drive.cost;
  }
  return sum / (end - begin);
}

describe("the motor", () => {
  it("tunes itself from gains that are ten times too low", () => {
    const own = new Drive(new Controller(module), low, 0);
    const held = new Drive(new Controller(module), low, 0);
    held.controller.freeze();
    [meanCost(own, 40), meanCost(held, 40)];
    expect(meanCost(own, 20, 40)).toBeLessThan(0.8 * meanCost(held, 20, 40));
    expect(own.gains.kp).toBeGreaterThan(2 * low.kp);
    expect(held.gains.kp).toBeCloseTo(low.kp, 9);
  });

  it("stands still under friction, and moves under a load", () => {
    const drive = new Drive(new Controller(module), low, 0);
    drive.controller.freeze();
    for (let step = 0; step < 4000; step++) drive.step(step, 0, { ...world, load: 0.5 });
    expect(Math.abs(drive.angle)).toBeLessThan(0.2); // the integral holds the load
    for (let step = 4000; step < 4040; step++) drive.step(step, 0, { ...world, load: -1.5 });
    expect(drive.angle).toBeGreaterThan(0.02);
  });

  it("has the same reference for the same seed, inside its range", () => {
    const levels = Array.from({ length: 500 }, (_, second) => referenceAt(second / PERIOD, 7));
    expect(Math.max(...levels)).toBeLessThanOrEqual(1.5);
    expect(Math.min(...levels)).toBeGreaterThanOrEqual(-1.5);
    expect(new Set(levels).size).toBe(500);
    expect(referenceAt(250, 7)).toBe(levels[1]);
  });
});
