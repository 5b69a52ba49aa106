// Makes the collection whose types are written.
import { makeNamed } from "./setting.mjs";

await makeNamed("posts");
