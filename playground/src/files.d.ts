declare module "*.c?url" {
  const address: string;
  export default address;
}
declare module "*.h?url" {
  const address: string;
  export default address;
}
declare module "*.wasm?url" {
  const address: string;
  export default address;
}
