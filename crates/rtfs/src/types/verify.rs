//! Checks a type as far as possible without a value.

use super::{Definitions, Predicate, TypeExpr};

impl TypeExpr {
    /// Checks that its regular expressions are valid and its names are defined, also in the definitions
    /// of the names. A parsed type can only have undefined names.
    ///
    /// # Errors
    /// The first fault: what was expected, and what there is.
    pub fn verify(&self, definitions: &Definitions) -> Result<(), String> {
        self.verify_alone(definitions)?;
        definitions.iter().try_for_each(|(_, ty)| ty.verify_alone(definitions))
    }

    fn verify_alone(&self, definitions: &Definitions) -> Result<(), String> {
        match self {
            Self::Ref(name) if definitions.get(name).is_none() => {
                return Err(format!("expected the name of a type, got {name}, which none has"));
            }
            Self::Defined { ty, definitions } => return ty.verify(definitions),
            Self::And(_, predicates) => {
                for predicate in predicates {
                    if let Predicate::MatchesRegex(pattern) = predicate
                        && let Err(problem) = pattern.check()
                    {
                        let expected = "a regular expression without look-around and back-references";
                        return Err(format!(
                            "expected {expected}, got {:?}: {problem}",
                            pattern.as_str()
                        ));
                    }
                }
            }
            _ => {}
        }
        self.parts().into_iter().try_for_each(|part| part.verify_alone(definitions))
    }

    /// Returns the direct parts of a type, without resolving names.
    pub fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Primitive(_) | Self::Enum(_) | Self::Val(_) | Self::Ref(_) => Vec::new(),
            Self::Union(types) | Self::Tuple(types) => types.iter().collect(),
            Self::Vector(ty)
            | Self::List(ty)
            | Self::Set(ty)
            | Self::Stream(ty)
            | Self::Array { item: ty, .. }
            | Self::And(ty, _)
            | Self::Not(ty)
            | Self::Defined { ty, .. } => vec![ty],
            Self::JsonSchema { meaning, .. } => vec![meaning],
            Self::Map(record) => {
                record.fields.iter().map(|field| &field.ty).chain(record.others.as_deref()).collect()
            }
            Self::MapOf(key, value) => vec![key, value],
            Self::Fn { params, rest, result } => {
                params.iter().chain(rest.as_deref()).chain([&**result]).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_names_without_meaning_and_broken_expressions() {
        let mut definitions = Definitions::new();
        definitions.define("Tree", TypeExpr::parse("[:vector [:union Tree Leaf]]").unwrap());
        let ty = TypeExpr::parse("[:map {:tree Tree}]").unwrap();
        let missing = "expected the name of a type, got Leaf, which none has";
        assert_eq!(ty.verify(&definitions), Err(missing.to_owned()));
        definitions.define("Leaf", TypeExpr::ANY);
        assert_eq!(ty.verify(&definitions), Ok(()));
        assert_eq!(
            ty.clone().with_definitions(definitions.clone().into()).verify(&Definitions::new()),
            Ok(())
        );
        let broken = Predicate::MatchesRegex("(".into());
        definitions.define("Leaf", TypeExpr::And(Box::new(TypeExpr::ANY), vec![broken]));
        assert!(
            ty.verify(&definitions).is_err_and(|problem| problem.ends_with("got \"(\": unclosed group"))
        );
    }
}
