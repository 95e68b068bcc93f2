use super::*;
use crate::testing::{Canned, marketplace};
use crate::{Call, JsonText, Limits as Bounds};

fn of(text: &str) -> Result<Option<Registration>, Vec<Fault>> {
    let made = made(text);
    if made.faults.is_empty() { Ok(made.registration) } else { Err(made.faults) }
}

fn made(text: &str) -> Made {
    capability("greet", Path::new("tools/greet.rtfs"), text, None, Arc::new(|_| None))
}

async fn call(text: &str, input: serde_json::Value) -> RuntimeResult<String> {
    let market = marketplace(Bounds::default(), [("echo", Canned::Echoes)]);
    market.register_executor(Arc::new(ProgramFileExecutor::new(&market))).unwrap();
    market.register_capability(of(text).unwrap().unwrap()).unwrap();
    let input = Payload::from_json(JsonText::of(&input).unwrap());
    let outcome = market.call(Call::to("greet").with(input)).await?;
    Ok(outcome.structured.unwrap().json().unwrap().as_str().to_owned())
}

#[test]
fn a_file_describes_itself() {
    for (text, comment, description) in [
        ("(defn main \"Greets.\" [input] 1)", Some("Says hello."), "Greets."),
        ("(defn main [input] 1)", Some("Says hello."), "Says hello."),
        ("(defn main [input] 1)", None, "Runs the program greet.rtfs."),
        ("(defn main [input", Some("Says hello."), "Says hello."),
    ] {
        let made = capability("greet", Path::new("greet.rtfs"), text, comment, Arc::new(|_| None));
        assert_eq!(made.registration.unwrap().manifest.description, description);
    }
    assert!(of("(defn helper [x] x)").unwrap().is_none(), "a module is no tool");
}

#[test]
fn faults_of_a_file_have_their_place() {
    let faults = of("(defn helper [x] x)\n(defn main [a b] 1)").err().unwrap();
    assert_eq!((faults[0].at.line, faults[0].at.column), (2, 7), "{faults:?}");
    let faults = of("(defn main [a]\n  (if))").err().unwrap();
    assert_eq!((faults[0].at.line, faults[0].at.column), (2, 3), "{faults:?}");
}

#[tokio::test(start_paused = true)]
async fn a_file_with_a_fault_is_a_tool_that_is_unavailable() {
    let late = "(defn main [input]\n  (if (:all input) (inc \"a\") 1))";
    for (text, place) in
        [(late, "greet.rtfs:2:25: "), ("(defn main [input]\n  (if))", "greet.rtfs:2:3: ")]
    {
        let market = marketplace(Bounds::default(), []);
        market.register_executor(Arc::new(ProgramFileExecutor::new(&market))).unwrap();
        let made = made(text);
        assert_eq!(made.faults.len(), 1, "{:?}", made.faults);
        market.register_capability(made.registration.unwrap()).unwrap();
        let error = market.call(Call::to("greet")).await.unwrap_err();
        assert_eq!(error.kind(), "unavailable");
        assert!(error.to_string().contains(place), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_runs_main_with_the_input() {
    let text = "(def greeting \"Hello\")
        (defn main [{:keys [name], :or {name \"you\"}}] :- [:map {:text :string}]
          (call :echo {:text (str greeting \", \" name)}))";
    let input = serde_json::json!({"name": "Ada"});
    assert_eq!(call(text, input).await.unwrap(), r#"{"text":"Hello, Ada"}"#);
    assert_eq!(call(text, serde_json::json!({})).await.unwrap(), r#"{"text":"Hello, you"}"#);
    let nothing = call("(defn main [] 1)", serde_json::json!({})).await.unwrap();
    assert_eq!(nothing, "1");
}

#[tokio::test(start_paused = true)]
async fn a_failure_names_the_place_in_the_file() {
    let input = serde_json::json!({"n": 0});
    for (text, words) in [
        ("(defn main [{:keys [n]}]\n  (quot 1 n))", "tools/greet.rtfs:2:3: arithmetic"),
        ("(defn main [input] (fn [] 1))", "cannot be given as JSON"),
        ("(def x (quot 1 0))\n(defn main [input] 1)", "tools/greet.rtfs:1:8: arithmetic"),
    ] {
        let error = call(text, input.clone()).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let typed = "(defn main [i :- [:map {:n [:and :int [:> 0]]}]] 1)";
    let error = call(typed, input).await.unwrap_err();
    assert_eq!(error.kind(), "invalid-input");
}

#[tokio::test(start_paused = true)]
async fn a_main_that_breaks_its_own_type_has_an_invalid_output() {
    let input = || serde_json::json!({"v": "q"});
    let text = "(defn main [x :- [:map [:v :any]]] :- [:map [:n :int] [:m :int]] {:n (:v x) :m (:v x)})";
    let error = call(text, input()).await.unwrap_err();
    assert_eq!(error.kind(), "invalid-output");
    let RuntimeError::InvalidOutput { violations, .. } = error else { panic!("{error:?}") };
    let paths: Vec<_> = violations.iter().map(|one| (&*one.path, &*one.got)).collect();
    assert_eq!(paths, [("output.n", "\"q\""), ("output.m", "\"q\"")]);
    // What else is not of its type is a mistake of the program.
    for text in [
        "(defn half [x] :- :int (:v x)) (defn main [x] :- :any (inc (half x)))",
        "(defn half [x] :- :int (:v x)) (defn main [x] (half x))",
        "(defn half [x] :- :int (:v x)) (defn main [x] :- :int (half x))",
        "(defn main [x] :- :int (let [result :- :int (:v x)] 1))",
        "(defn main [x] :- :int (first (pmap (fn [y] :- :int (:v x)) [1])))",
        "(def wrong ((fn [] :- :int (parse-int (str \"x\"))))) (defn main [x] :- :int 1)",
    ] {
        let error = call(text, input()).await.unwrap_err();
        let RuntimeError::Structured { error, .. } = error else { panic!("{text}: {error:?}") };
        assert_eq!(&*error.kind, "type", "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_input_that_no_value_can_hold_is_invalid() {
    let market = marketplace(Bounds::default(), []);
    market.register_executor(Arc::new(ProgramFileExecutor::new(&market))).unwrap();
    market.register_capability(of("(defn main [input] input)").unwrap().unwrap()).unwrap();
    let deep = format!("{{\"v\": {}1{}}}", "[".repeat(9_000), "]".repeat(9_000));
    for text in [r#"{"v": 1e400}"#, r#"{"v": "\ud800"}"#, r#"{"v": 1, "v": 2}"#, &*deep] {
        let input = Payload::from_json(JsonText::parse(text.to_owned()).unwrap());
        let error = market.call(Call::to("greet").with(input)).await.unwrap_err();
        assert_eq!(error.kind(), "invalid-input", "{error}");
        assert!(error.to_string().starts_with("greet: invalid input: input"), "{error}");
    }
}
