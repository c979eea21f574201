/** Two robots side by side, drawn by three.js: each with the shadow of its reference, the path of its tool, and its payload. */
import * as three from "three";
import { Line2 } from "three/addons/lines/Line2.js";
import { LineGeometry } from "three/addons/lines/LineGeometry.js";
import { LineMaterial } from "three/addons/lines/LineMaterial.js";
import { element } from "../controls";
import type { MainModule, MjData, MjModel } from "./mujoco";
import type { Plant, Push, Vector } from "./plant";

/** Where the camera stands, in degrees and metres. */
export interface View {
  target: Vector;
  distance: number;
  azimuth: number;
  elevation: number;
  floor: number;
}

/** A robot's shape: three.js objects that follow a pose. */
export interface Shape {
  readonly group: three.Group;
  pose(qpos: number[]): void;
  /** Give back what MuJoCo holds for the shape. */
  free(): void;
}

export type Colours = Record<"learning" | "fixed" | "best" | "grid" | "card" | "text" | "muted" | "metal", three.Color>;

/** The trail of the tool: so many points, and the seconds that it covers. */
const TRAIL = 100;
const TRAILED = 1.5;

export function colours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const named = (name: string) => new three.Color(style.getPropertyValue(`--${name}`).trim());
  const names = ["learning", "fixed", "best", "grid", "card", "text", "muted", "metal"] as const;
  return Object.fromEntries(names.map((name) => [name, named(name)])) as Colours;
}

/** The shape of a model's geoms. `skipped` bodies are drawn elsewhere. */
export class ModelShape implements Shape {
  readonly group = new three.Group();
  readonly #data: MjData;
  readonly #meshes: { mesh: three.Mesh; geom: number }[] = [];
  readonly #hubs: { mesh: three.Mesh; joint: number }[] = [];

  constructor(
    readonly mujoco: MainModule,
    readonly model: MjModel,
    material: (rgba: ArrayLike<number>) => three.Material,
    { skipped = -1, hubs = 0 }: { skipped?: number; hubs?: number } = {},
  ) {
    this.#data = new mujoco.MjData(model);
    for (let geom = 0; geom < model.ngeom; geom++) {
      const body = model.geom_bodyid[geom];
      const shape = geometry(model.geom_type[geom], model.geom_size.subarray(3 * geom, 3 * geom + 3));
      if (body === skipped || shape === null) continue;
      const mesh = new three.Mesh(shape, material(model.geom_rgba.subarray(4 * geom, 4 * geom + 4)));
      mesh.userData.joint = model.body_jntadr[body];
      this.#add(mesh);
      this.#meshes.push({ mesh, geom });
    }
    for (let joint = 0; hubs && joint < model.njnt; joint++) {
      const mesh = new three.Mesh(new three.CylinderGeometry(hubs, hubs, 2.6 * hubs, 32), material([0.25, 0.28, 0.33, 1]));
      mesh.userData.joint = joint;
      this.#add(mesh);
      this.#hubs.push({ mesh, joint });
    }
  }

  pose(qpos: number[]): void {
    this.#data.qpos.set(qpos);
    this.mujoco.mj_kinematics(this.model, this.#data);
    const { geom_xpos: places, geom_xmat: turns, xanchor, xaxis } = this.#data;
    for (const { mesh, geom } of this.#meshes) {
      const [m, p] = [turns.subarray(9 * geom, 9 * geom + 9), places.subarray(3 * geom, 3 * geom + 3)];
      mesh.matrix.set(m[0], m[1], m[2], p[0], m[3], m[4], m[5], p[1], m[6], m[7], m[8], p[2], 0, 0, 0, 1);
    }
    for (const { mesh, joint } of this.#hubs) {
      const axis = new three.Vector3(...(xaxis.subarray(3 * joint, 3 * joint + 3) as Vector));
      const turn = new three.Quaternion().setFromUnitVectors(new three.Vector3(0, 1, 0), axis);
      mesh.matrix.compose(new three.Vector3(...(xanchor.subarray(3 * joint, 3 * joint + 3) as Vector)), turn, ONE);
    }
  }

  free(): void {
    this.#data.delete();
  }

  #add(mesh: three.Mesh): void {
    mesh.matrixAutoUpdate = false;
    mesh.castShadow = !(mesh.material as three.Material).transparent;
    this.group.add(mesh);
  }
}

const ONE = new three.Vector3(1, 1, 1);

/** MuJoCo's shapes have their axis along z, and those of three.js along y. */
function geometry(type: number, size: ArrayLike<number>): three.BufferGeometry | null {
  const [a, b, c] = [size[0]!, size[1]!, size[2]!];
  if (type === 2) return new three.SphereGeometry(a, 32, 20);
  if (type === 3) return new three.CapsuleGeometry(a, 2 * b, 10, 28).rotateX(Math.PI / 2);
  if (type === 4) return new three.SphereGeometry(1, 32, 20).scale(a, b, c);
  if (type === 5) return new three.CylinderGeometry(a, a, 2 * b, 40).rotateX(Math.PI / 2);
  if (type === 6) return new three.BoxGeometry(2 * a, 2 * b, 2 * c);
  return null;
}

/** One half of the stage. */
class Half {
  readonly scene = new three.Scene();
  readonly payload: three.Mesh<three.SphereGeometry, three.MeshStandardMaterial>;
  readonly arrow: three.ArrowHelper;
  readonly #trail: Line2;
  #points: number[] = [];

  constructor(
    readonly shape: Shape,
    readonly ghost: Shape | null,
    extras: three.Object3D[],
    path: Vector[],
    colour: three.Color,
    shown: Colours,
    view: View,
    readonly width: number,
  ) {
    const { scene } = this;
    scene.background = shown.card;
    const light = new three.DirectionalLight(0xffffff, 2.6);
    light.position.set(view.target[0] - 1.2, view.target[1] - 2.2, view.target[2] + 3.5);
    light.target.position.set(...view.target);
    light.castShadow = true;
    light.shadow.mapSize.set(1024, 1024);
    light.shadow.radius = 5;
    light.shadow.bias = -0.0005;
    const far = 0.75 * view.distance;
    Object.assign(light.shadow.camera, { left: -far, right: far, top: far, bottom: -far, near: 0.1, far: 12 });
    const floor = new three.Mesh(new three.PlaneGeometry(40, 40), new three.ShadowMaterial({ opacity: 0.22 }));
    floor.position.z = view.floor + 0.001;
    floor.receiveShadow = true;
    const grid = new three.GridHelper(8, 32, shown.grid, shown.grid);
    grid.rotation.x = Math.PI / 2;
    grid.position.z = view.floor;
    this.payload = new three.Mesh(
      new three.SphereGeometry(1, 32, 20),
      new three.MeshStandardMaterial({ color: shown.text, roughness: 0.45 }),
    );
    this.payload.castShadow = true;
    const wanted = line(path.flat(), shown.best, 2, true);
    this.#trail = line([0, 0, 0, 0, 0, 0], colour, width, false);
    this.arrow = new three.ArrowHelper(new three.Vector3(0, 0, 1), new three.Vector3(), 1, shown.text);
    this.arrow.visible = false;
    scene.add(new three.HemisphereLight(0xffffff, 0xb8bcc4, 2.4), light, light.target, floor, grid);
    scene.add(shape.group, ...(ghost ? [ghost.group] : []), ...extras, this.payload, wanted, this.#trail, this.arrow);
  }

  /** Add a point to the trail. */
  follow(tip: Vector): void {
    this.#points.push(...tip);
    if (this.#points.length > 3 * TRAIL) this.#points.splice(0, 3);
  }

  draw(): void {
    this.#trail.visible = this.#points.length >= 6;
    if (!this.#trail.visible) return;
    const geometry = new LineGeometry();
    geometry.setPositions(this.#points);
    this.#trail.geometry.dispose();
    this.#trail.geometry = geometry;
  }

  forget(): void {
    this.#points = [];
  }

  free(): void {
    this.shape.free();
    this.ghost?.free();
    this.scene.traverse((one) => {
      if (one instanceof three.Mesh) one.geometry.dispose();
    });
  }
}

function line(points: number[], color: three.Color, linewidth: number, dashed: boolean): Line2 {
  const geometry = new LineGeometry();
  geometry.setPositions(points);
  const material = new LineMaterial({ color, linewidth, dashed, dashSize: 0.02, gapSize: 0.014, transparent: true, opacity: 0.85 });
  const made = new Line2(geometry, material);
  made.computeLineDistances();
  made.frustumCulled = false;
  return made;
}

export interface StageOptions {
  view: View;
  /** Make the shape of a robot in this colour; a ghost is translucent. */
  shape: (colour: three.Color, shown: Colours, ghost: boolean) => Shape;
  /** Things that do not move. */
  furniture?: (shown: Colours) => three.Object3D[];
  hasGhost: boolean;
  path: Vector[];
  /** The radius of one kilogram, and how far below the tool a payload hangs. */
  payloadRadius: number;
  payloadBelow: number;
  /** The reader pulls a robot: a joint and a point of the world on it, and the point to which it is pulled; null at the end. */
  pulled: (pull: { joint: number; from: Vector; to: Vector } | null, half: number) => void;
  labels: [string, string];
  /** The length of an arrow, in metres for a newton. */
  arrow: number;
}

export class Stage {
  readonly element: HTMLElement;
  readonly #canvas = element("canvas", { tabindex: "0", role: "img" });
  readonly #renderer: three.WebGLRenderer;
  readonly #camera = new three.PerspectiveCamera(32, 1, 0.05, 60);
  readonly #dark = matchMedia("(prefers-color-scheme: dark)");
  readonly #make = () => this.#build();
  readonly #observer: ResizeObserver;
  #view: View;
  #halves: [Half, Half] | null = null;

  constructor(readonly options: StageOptions) {
    this.#view = { ...options.view };
    this.#camera.up.set(0, 0, 1);
    const [left, right] = options.labels;
    this.element = element(
      "figure",
      { class: "stage" },
      this.#canvas,
      element("figcaption", {}, element("span", { class: "key", style: "--key: var(--learning)" }, left), element("span", { class: "key", style: "--key: var(--fixed)" }, right)),
    );
    this.#renderer = new three.WebGLRenderer({ canvas: this.#canvas, antialias: true });
    this.#renderer.setPixelRatio(Math.min(devicePixelRatio, 2));
    this.#renderer.shadowMap.enabled = true;
    this.#renderer.shadowMap.type = three.PCFShadowMap;
    this.#renderer.setScissorTest(true);
    this.#build();
    this.#dark.addEventListener("change", this.#make);
    this.#observer = new ResizeObserver(() => this.#resize());
    this.#observer.observe(this.#canvas);
    this.#listen();
  }

  /** Draw both robots as they are at this step. */
  show(plants: [Plant, Plant], step: number, payload: number, push: Push | null): void {
    this.#halves!.forEach((half, i) => {
      const plant = plants[i]!;
      const tip = plant.tip();
      half.shape.pose(plant.pose());
      half.ghost?.pose(plant.wantedPose(step));
      const radius = this.options.payloadRadius * Math.cbrt(payload);
      half.payload.visible = payload > 1e-6;
      half.payload.scale.setScalar(Math.max(radius, 1e-6));
      half.payload.position.set(tip[0], tip[1], tip[2] - this.options.payloadBelow);
      half.draw();
      half.arrow.visible = push !== null;
      if (push) {
        const force = new three.Vector3(...push.force);
        const length = Math.max(1e-3, force.length() * this.options.arrow);
        half.arrow.position.set(...plant.pointOf(push));
        half.arrow.setDirection(force.normalize());
        half.arrow.setLength(length, Math.min(0.06, 0.4 * length), Math.min(0.035, 0.25 * length));
      }
    });
    this.draw();
  }

  draw(): void {
    const { width, height } = this.#size();
    if (!this.#halves || width === 0) return;
    const { target, distance, azimuth, elevation } = this.#view;
    const [a, e] = [(azimuth * Math.PI) / 180, (elevation * Math.PI) / 180];
    const away = distance * Math.max(1, 1.05 / this.#camera.aspect); // a narrow picture needs a longer way
    this.#camera.position.set(
      target[0] + away * Math.cos(e) * Math.cos(a),
      target[1] + away * Math.cos(e) * Math.sin(a),
      target[2] + away * Math.sin(e),
    );
    this.#camera.lookAt(...target);
    this.#halves.forEach((half, i) => {
      const left = Math.round((i * width) / 2);
      this.#renderer.setViewport(left, 0, width / 2, height);
      this.#renderer.setScissor(left, 0, width / 2, height);
      this.#renderer.render(half.scene, this.#camera);
    });
  }

  /** Call this at each step: it records the trails of the tools. */
  follow(plants: [Plant, Plant], step: number): void {
    const every = Math.max(1, Math.round(TRAILED / TRAIL / plants[0].dt));
    if (step % every === 0) this.#halves!.forEach((half, i) => half.follow(plants[i]!.tip()));
  }

  forget(): void {
    this.#halves?.forEach((half) => half.forget());
  }

  describe(text: string): void {
    this.#canvas.setAttribute("aria-label", text);
  }

  free(): void {
    this.#dark.removeEventListener("change", this.#make);
    this.#observer.disconnect();
    this.#halves?.forEach((half) => half.free());
    this.#halves = null;
    this.#renderer.dispose();
    this.#renderer.forceContextLoss();
  }

  #build(): void {
    this.#halves?.forEach((half) => half.free());
    const shown = colours();
    const { shape, furniture, hasGhost, path, view } = this.options;
    const sparse = path.filter((_, i) => i % 10 === 0);
    const loop = [...sparse, sparse[0]!];
    this.#halves = [shown.learning, shown.fixed].map((colour) => {
      const ghost = hasGhost ? shape(shown.best, shown, true) : null;
      return new Half(shape(colour, shown, false), ghost, furniture?.(shown) ?? [], loop, colour, shown, view, 3);
    }) as [Half, Half];
  }

  #size(): { width: number; height: number } {
    return { width: this.#canvas.clientWidth, height: this.#canvas.clientHeight };
  }

  #resize(): void {
    const { width, height } = this.#size();
    if (width === 0 || height === 0) return;
    this.#renderer.setSize(width, height, false);
    this.#camera.aspect = width / 2 / height;
    this.#camera.updateProjectionMatrix();
    this.draw();
  }

  /** Pull a robot, or turn the camera. */
  #listen(): void {
    const canvas = this.#canvas;
    const caster = new three.Raycaster();
    const plane = new three.Plane();
    let pull: { joint: number; from: three.Vector3; half: number } | null = null;
    let turning: { x: number; y: number } | null = null;
    const aim = (event: { clientX: number; clientY: number }, half?: number): number => {
      const box = canvas.getBoundingClientRect();
      const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      const side = half ?? (x < 0.5 ? 0 : 1);
      caster.setFromCamera(new three.Vector2(2 * (2 * x - side) - 1, 1 - 2 * y), this.#camera);
      return side;
    };
    const hit = (event: { clientX: number; clientY: number }) => {
      const half = aim(event);
      const { shape, payload } = this.#halves![half]!;
      const found = caster.intersectObjects([shape.group, ...(payload.visible ? [payload] : [])], true)[0];
      if (!found) return null;
      const joint: number = found.object === payload ? -2 : (found.object.userData.joint ?? -1);
      return joint === -1 ? null : { joint, from: found.point.clone(), half };
    };
    canvas.addEventListener("touchstart", (event) => event.touches.length === 1 && hit(event.touches[0]!) && event.preventDefault(), {
      passive: false,
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      pull = hit(event);
      if (pull) plane.setFromNormalAndCoplanarPoint(this.#camera.getWorldDirection(new three.Vector3()), pull.from);
      else turning = { x: event.clientX, y: event.clientY };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (pull) {
        aim(event, pull.half);
        const to = caster.ray.intersectPlane(plane, new three.Vector3());
        if (to) this.options.pulled({ joint: pull.joint, from: pull.from.toArray(), to: to.toArray() }, pull.half);
      } else if (turning) {
        this.#turn(turning.x - event.clientX, event.clientY - turning.y);
        turning = { x: event.clientX, y: event.clientY };
      } else {
        canvas.style.cursor = hit(event) ? "grab" : "move";
      }
    });
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
      canvas.addEventListener(end, () => {
        if (pull) this.options.pulled(null, pull.half);
        pull = turning = null;
      });
    }
    canvas.addEventListener("keydown", (event) => {
      const turns: Record<string, [number, number]> = { ArrowLeft: [-20, 0], ArrowRight: [20, 0], ArrowUp: [0, 20], ArrowDown: [0, -20] };
      const turn = turns[event.key];
      if (!turn) return;
      event.preventDefault();
      this.#turn(...turn);
    });
  }

  #turn(across: number, up: number): void {
    this.#view.azimuth += 0.4 * across;
    this.#view.elevation = Math.min(85, Math.max(-5, this.#view.elevation + 0.4 * up));
    this.draw();
  }
}
