/** A periodic reference: a centre and some sine waves for each coordinate. */
export interface PathNumbers {
  /** The number of steps of one period. */
  lap: number;
  center: number[];
  waves: { turns: number[]; cosine: number[]; sine: number[] }[];
}

export interface Point {
  position: number[];
  rate: number[];
  acceleration: number[];
}

export class Path {
  readonly lap: number;
  readonly #pace: number;

  constructor(readonly numbers: PathNumbers, dt: number) {
    this.lap = numbers.lap;
    this.#pace = (2 * Math.PI) / (numbers.lap * dt);
  }

  at(step: number): Point {
    const { center, waves } = this.numbers;
    const phase = (2 * Math.PI * (step % this.lap)) / this.lap;
    const point: Point = { position: [...center], rate: center.map(() => 0), acceleration: center.map(() => 0) };
    for (const { turns, cosine, sine } of waves) {
      for (let i = 0; i < center.length; i++) {
        const [c, s] = [Math.cos(turns[i]! * phase), Math.sin(turns[i]! * phase)];
        const speed = turns[i]! * this.#pace;
        point.position[i]! += cosine[i]! * c + sine[i]! * s;
        point.rate[i]! += speed * (sine[i]! * c - cosine[i]! * s);
        point.acceleration[i]! -= speed ** 2 * (cosine[i]! * c + sine[i]! * s);
      }
    }
    return point;
  }
}
