//! The description of the API, in the form of OpenAPI 3.1: the table of routes, and the types that they send and answer.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::api::{ROUTES, Route};
use crate::shapes::Problem;

/// The description as JSON.
pub fn text() -> String {
    let mut text = format!("{:#}", description());
    text.push('\n');
    text
}

fn description() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut shapes = settings.into_generator();
    let problem = shapes.subschema_for::<Problem>().to_value();
    let mut paths = Map::new();
    for route in &ROUTES {
        let operation = operation(route, &mut shapes, &problem);
        let at = paths.entry(route.path).or_insert_with(|| json!({}));
        at[route.method.to_ascii_lowercase()] = operation;
    }
    let schemas = shapes.take_definitions(true);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Farshore",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Virtual machines and programs that run under Farshore: what they do, and their limits.",
            "description": "Served at a Unix socket to its user and to root, and at a port to those who know a token. What is under /v1 stays as it is: members may be added.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "At a port: a line of the daemon's --token-file." }
            }
        }
    })
}

fn operation(route: &Route, shapes: &mut schemars::SchemaGenerator, problem: &Value) -> Value {
    let content = |schema: Value| json!({ "application/json": { "schema": schema } });
    let answer = route.answer.map_or_else(|| json!({ "type": "object" }), |shape| shape(shapes).to_value());
    let named = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let number = |name: &str, place: &str, about: &str| {
        let (required, least) = (place == "path", u8::from(name == "pid"));
        json!({ "name": name, "in": place, "required": required, "description": about, "schema": { "type": "integer", "minimum": least } })
    };
    let about = |name: &str| if name == "pid" { "The process." } else { "The number of the change." };
    let mut parameters: Vec<Value> = named.map(|name| number(name, "path", about(name))).collect();
    parameters.extend(route.query.map(|(name, about)| number(name, "query", about)));
    let name: String = route.path.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
    let mut operation = json!({
        "operationId": format!("{}{name}", route.method.to_ascii_lowercase()),
        "summary": route.about,
        "parameters": parameters,
        "responses": {
            route.status.to_string(): { "description": "It was done.", "content": content(answer) },
            "default": { "description": "It was not done: why.", "content": content(problem.clone()) },
        }
    });
    if let Some(shape) = route.body {
        operation["requestBody"] = json!({ "required": true, "content": content(shape(shapes).to_value()) });
    }
    operation
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|inside| references(inside, found));
            }
            Value::Array(all) => all.iter().for_each(|inside| references(inside, found)),
            _ => {}
        }
    }

    #[test]
    fn each_reference_leads_somewhere_and_each_member_is_described() {
        let all: Value = serde_json::from_str(&text()).expect("it is JSON");
        let mut found = Vec::new();
        references(&all, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for reference in found {
            assert!(reference.starts_with('#') && all.pointer(&reference[1..]).is_some(), "{reference} leads nowhere");
        }
        for (name, schema) in all["components"]["schemas"].as_object().expect("there are some") {
            for (member, shape) in schema["properties"].as_object().into_iter().flatten() {
                assert!(shape["description"].is_string(), "{name}.{member} is not described");
            }
        }
    }

    #[test]
    fn the_reference_has_every_route_and_member() {
        let mut above = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let root = above.find(|folder| folder.join("Cargo.lock").exists()).expect("the crate is in a workspace");
        let page = std::fs::read_to_string(root.join("docs/src/reference/api.md")).expect("it is there");
        for route in &ROUTES {
            assert!(
                page.contains(&format!("`{} {}`", route.method, route.path)),
                "docs/src/reference/api.md has no `{} {}`",
                route.method,
                route.path
            );
        }
        let all = description();
        for name in ["Vm", "Create", "Service", "Set", "Host"] {
            for member in all["components"]["schemas"][name]["properties"].as_object().expect("it has some").keys() {
                assert!(page.contains(&format!("`{member}`")), "docs/src/reference/api.md has no `{member}` of {name}");
            }
        }
    }
}
