/** MuJoCo's physics, loaded once and only when a robot is shown. */
import start, { type MainModule } from "@mujoco/mujoco";
import address from "@mujoco/mujoco/mujoco.wasm?url";

export type { MainModule, MjData, MjModel } from "@mujoco/mujoco";

let loaded: Promise<MainModule> | null = null;

/** `progress` gets the share of the download, from 0 to 1. */
export function loadMujoco(progress: (share: number) => void): Promise<MainModule> {
  loaded ??= download(progress).then((wasmBinary) => start({ wasmBinary }));
  loaded.catch(() => (loaded = null)); // the next attempt downloads again
  return loaded;
}

/** The size of the file without compression: servers that compress do not tell it. */
const SIZE = 10_300_000;

async function download(progress: (share: number) => void): Promise<Uint8Array> {
  const response = await fetch(address);
  if (!response.ok || response.body === null) throw new Error(`${address}: status ${response.status}`);
  const plain = response.headers.get("content-encoding") === null;
  const total = (plain && Number(response.headers.get("content-length"))) || SIZE;
  const parts: Uint8Array[] = [];
  let received = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    received += value.length;
    progress(Math.min(1, received / total));
  }
  const bytes = new Uint8Array(received);
  let place = 0;
  for (const part of parts) {
    bytes.set(part, place);
    place += part.length;
  }
  return bytes;
}
