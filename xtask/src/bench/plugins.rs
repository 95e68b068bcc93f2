//! Plugins: a call beside the same bytes over the same pipes.

use serde_json::json;

use super::capsules::Pipes;
use super::client::{self, Connection};
use super::life::fresh;
use super::stats::Rounds;
use super::{Effort, Figure, Programs};
use crate::server::Server;

/// A call of a plugin's function over keep-alive HTTP against the same plugin's pipes.
pub(super) fn calls(programs: &Programs, effort: Effort) -> Result<Vec<Figure>, String> {
    let folder = programs.folder.join("plugin");
    fresh(&folder.join("tools"))?;
    let config = format!("plugins:\n  echo: {}\n", programs.echo_plugin.display());
    std::fs::write(folder.join("orla.yaml"), config).map_err(|err| err.to_string())?;
    let orla = Server::start(&programs.orla, &folder, &folder)?;
    let arguments = json!({"city": "Paris", "count": 3});
    let call = client::call("echo", &arguments);
    let mut first = Connection::open(&orla.address)?;
    first.exchange(&client::sessionless("tools/list", json!({})))?;
    first.exchange(&call)?;
    let (mut direct, mut served) = (Rounds::default(), Rounds::default());
    let mut pipes = Pipes::start(&programs.echo_plugin)?;
    let line = |id: usize| format!("{{\"id\":{id},\"function\":\"echo\",\"input\":{arguments}}}\n");
    for _ in 0..effort.rounds {
        direct.0.push(pipes.round_of(line, "Paris", effort.round)?);
        served.0.push(client::polled(&orla.address, &call, 1, effort.round)?);
    }
    let (floor, p50) = (direct.micros(50), served.micros(50));
    let ratio = p50 / floor;
    let mut many = Rounds::default();
    for _ in 0..effort.rounds {
        many.0.push(client::polled(&orla.address, &call, 8, effort.round)?);
    }
    let rate = many.rate();
    Ok(vec![
        Figure::new(
            "plugin call, p50 over HTTP ÷ its pipes",
            format!("{ratio:.2} ({p50:.0} of {floor:.0} µs)"),
            json!({"ratio": ratio, "p50_us": p50, "pipes_p50_us": floor}),
        )
        .goal("≤ 2", ratio <= 2.0),
        Figure::new(
            "plugin call, 8 clients",
            format!("{rate:.0}/s, p50 {:.0} µs", many.micros(50)),
            json!({"per_s": rate, "p50_us": many.micros(50)}),
        ),
    ])
}
