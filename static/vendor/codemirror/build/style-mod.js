// Has CodeMirror's styles adopted by the document. The package does so in shadow roots only; elsewhere it
// writes a <style>, which the content security policy refuses.
import { StyleModule as Base } from "./node_modules/style-mod/src/style-mod.js";

const page = {
  ownerDocument: document,
  get adoptedStyleSheets() { return document.adoptedStyleSheets; },
  set adoptedStyleSheets(sheets) { document.adoptedStyleSheets = sheets; },
};

export class StyleModule extends Base {
  static mount(root, modules) {
    Base.mount(root === document ? page : root, modules);
  }
}
