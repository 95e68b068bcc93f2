//! Every built-in answers whatever it is given: the first line names one, each further line is an argument, as JSON
//! or else as text. What it gives is the same each time, and JSON if that is what it was given.
#![no_main]

use libfuzzer_sys::fuzz_target;
use orla_registry::CapabilityRegistry;
use rtfs::json::{value_from_json, value_to_json};
use rtfs::{Map, Value};

fuzz_target!(|text: &str| {
    let (name, lines) = text.split_once('\n').unwrap_or((text, ""));
    // Any first byte names one, so that none is hard to find.
    let at = name.bytes().fold(0, |sum, byte| usize::from(byte) + 31 * (sum % 1_000));
    let count = CapabilityRegistry.builtins().count();
    let by_number = || CapabilityRegistry.builtins().nth(at % count);
    let Some(builtin) = CapabilityRegistry.get(name).or_else(by_number) else { return };
    let mut input = Map::new();
    for (parameter, line) in builtin.parameters.iter().zip(lines.split('\n')) {
        // A dash stands for an argument that is left out; a line break within one is written as JSON has it.
        if line != "-" {
            let value = value_from_json(line).unwrap_or_else(|_| Value::from(line));
            input.insert(Value::keyword(parameter.name), value).expect("it is not that deep");
        }
    }
    let input = Value::from(input);
    let result = builtin.call(&input);
    match &result {
        Ok(value) => {
            let json = value_to_json(value);
            assert!(json.is_ok(), "{} of {input:?} gives {value:?}", builtin.name);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert_eq!(format!("{result:?}"), format!("{:?}", builtin.call(&input)), "{} of {input:?}", builtin.name);
});
