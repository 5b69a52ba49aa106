// Makes the collection that the argument names.
import { makeNamed } from "./setting.mjs";

await makeNamed(process.argv[2]);
