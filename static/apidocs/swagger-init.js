"use strict";

// Swagger UI reads JSON as YAML, keeps all of the description in immutable maps, and resolves each operation that is
// opened within all of it: together many seconds. Here it gets the operations without what only an open one shows, and
// resolves that within what it refers to.
const LISTED = ["tags", "summary", "description", "operationId", "security", "deprecated"];

function quick({fn: {resolveSubtree}}) {
  let whole;
  const parseToJson = (text) => ({specActions}) => {
    whole = JSON.parse(text);
    const paths = mapped(whole.paths, (item) => mapped(item, listed));
    const {securitySchemes} = whole.components;
    specActions.updateJsonSpec({...whole, paths, components: {securitySchemes}});
  };
  return {
    fn: {resolveSubtree: (description, path, options) => resolveSubtree(partAt(whole, path), path, options)},
    statePlugins: {spec: {actions: {parseToJson}}},
  };
}

function mapped(object, change) {
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value)]));
}

// The parameters of all operations of a path stay.
function listed(operation) {
  if (Array.isArray(operation)) {
    return operation;
  }
  return Object.fromEntries(Object.entries(operation).filter(([name]) => LISTED.includes(name)));
}

function partAt(description, [kind, name, inner]) {
  if (kind === "paths" && inner) {
    const {parameters = [], [inner]: operation} = description.paths[name];
    // Without other paths, its resolver leaves a reference among the path's parameters as it is.
    const own = parameters.map((one) => (one.$ref ? description.components.parameters[one.$ref.split("/").pop()] : one));
    const paths = {[name]: {parameters: own, [inner]: operation}};
    return {...description, paths, components: componentsOf(description, paths)};
  }
  if (kind === "components" && name) {
    const part = inner ? {[inner]: description.components[name][inner]} : description.components[name];
    const components = componentsOf(description, part);
    return {...description, paths: {}, components: {...components, [name]: {...components[name], ...part}}};
  }
  return description;
}

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  plugins: [quick],
  deepLinking: true,
  // All operations at once take seconds to draw.
  docExpansion: "none",
  filter: true,
  defaultModelsExpandDepth: -1,
  tryItOutEnabled: true,
  // A credential typed in is gone with the tab: nothing goes to the browser's storage.
  persistAuthorization: false,
  // The badge would send our address to somebody else's server.
  validatorUrl: null,
  // ?url= and ?configUrl= in a link must not choose what is shown.
  queryConfigEnabled: false,
});
