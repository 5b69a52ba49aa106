"use strict";

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
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
