/** Columns of numbers over time. If there are too many rows, every second row is dropped, so that the whole run stays visible. */
export class History {
  readonly columns: number[][];
  #every: number;
  #step = 0;

  constructor(columns: number, private readonly first: number, private readonly most = 1200) {
    this.columns = Array.from({ length: columns }, () => []);
    this.#every = first;
  }

  /** Call this at each step. The row is computed only if it is kept. */
  push(row: () => number[]): void {
    if (this.#step++ % this.#every) return;
    row().forEach((value, i) => this.columns[i]!.push(value));
    if (this.columns[0]!.length <= this.most) return;
    this.#every *= 2;
    for (const column of this.columns) column.splice(0, column.length, ...column.filter((_, i) => i % 2 === 0));
  }

  clear(): void {
    for (const column of this.columns) column.length = 0;
    this.#every = this.first;
    this.#step = 0;
  }
}
