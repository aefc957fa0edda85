"use strict";
// The description of the REST interface, from openapi.json.

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// A short name of the type of a schema: string, list of SearchHit, "snippet" or "full" …
function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return [...new Set(choices.map(typeOf))].join(" or ");
  if (schema.type === "array") return `list of ${typeOf(schema.items) || "values"}`;
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  return schema.type || "value";
}

function table(rows) {
  const head = make("tr", {}, ...["name", "type", "default", "meaning"].map((each) => make("th", {}, each)));
  const body = rows.map(([name, schema, required, text]) => make("tr", {},
    make("td", {}, make("code", {}, name)), make("td", {}, typeOf(schema)),
    make("td", {}, required ? "required" : schema.default === undefined ? "" : JSON.stringify(schema.default)),
    make("td", {}, text || schema.description || "")));
  return make("div", { class: "wide" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function fields(schema) {
  const required = schema.required || [];
  return Object.entries(schema.properties || {}).map(([name, each]) => [name, each, required.includes(name)]);
}

function showRoute(path, method, route, schemas) {
  const section = make("section", {}, make("h2", {}, make("code", {}, `${method.toUpperCase()} ${path}`)),
    make("p", {}, route.description || route.summary || ""));
  const parameters = (route.parameters || []).map((each) =>
    [each.name, each.schema, each.required, each.description]);
  if (parameters.length) section.append(make("h3", {}, "Parameters"), table(parameters));
  const body = route.requestBody && route.requestBody.content["application/json"];
  if (body) {
    const schema = schemas[typeOf(body.schema)] || body.schema;
    section.append(make("h3", {}, "Body"), table(fields(schema)));
  }
  const answer = route.responses["200"] && route.responses["200"].content;
  const name = answer && answer["application/json"] && typeOf(answer["application/json"].schema);
  if (name) section.append(make("p", {}, "Answer: ", make("a", { href: `#${name}` }, name)));
  return section;
}

async function show() {
  const found = await (await fetch("openapi.json")).json();
  const schemas = (found.components || {}).schemas || {};
  const routes = Object.entries(found.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, route]) => showRoute(path, method, route, schemas)));
  const answers = Object.entries(schemas).filter(([name]) => /Answer$/.test(name)).map(([name, schema]) =>
    make("section", { id: name }, make("h3", {}, name), make("p", {}, schema.description || ""),
      table(fields(schema))));
  document.getElementById("routes").replaceChildren(...routes, make("h2", {}, "Answers"), ...answers);
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

const base = new URL("./", location.href).href;
document.getElementById("example").textContent = `curl -G ${base}v1/search --data-urlencode "q=your question" -d k=5`;
show().catch((error) => { document.getElementById("routes").textContent = error.message; });
