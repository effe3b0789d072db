//! Properties of random selectors, against a model that shares no code with the crate.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;
use tortie_selector::{Expr, ParseErrorKind, Selector};

type Labels = BTreeMap<String, String>;

/// A selector as it might be written: the model writes it and evaluates it in the plainest way.
#[derive(Clone, Debug)]
enum Model {
    All(&'static str),
    Has(&'static str),
    Compare(&'static str, &'static str, String),
    Member(&'static str, bool, Vec<String>),
    Not(Box<Model>),
    Parentheses(Box<Model>),
    And(Vec<Model>),
    Or(Vec<Model>),
}

const NAMES: [&str; 8] = ["a", "b", "c", "in", "has", "not", "all", "k8s.io/na-me_"];
const OPERATORS: [&str; 5] = ["==", "!=", "contains", "starts with", "ends with"];

impl Model {
    fn holds(&self, labels: &Labels) -> bool {
        match self {
            Model::All(_) => true,
            Model::Has(name) => labels.contains_key(*name),
            Model::Compare(name, operator, value) => match (*operator, labels.get(*name)) {
                ("==", actual) => actual == Some(value),
                ("!=", actual) => actual != Some(value),
                (_, None) => false,
                ("contains", Some(actual)) => actual.find(value).is_some(),
                ("starts with", Some(actual)) => actual.find(value) == Some(0),
                (_, Some(actual)) => actual.rfind(value).is_some_and(|at| at + value.len() == actual.len()),
            },
            Model::Member(name, negated, values) => {
                labels.get(*name).is_some_and(|actual| values.contains(actual)) != *negated
            }
            Model::Not(operand) => !operand.holds(labels),
            Model::Parentheses(operand) => operand.holds(labels),
            Model::And(operands) => operands.iter().filter(|o| !o.holds(labels)).count() == 0,
            Model::Or(operands) => operands.iter().filter(|o| o.holds(labels)).count() > 0,
        }
    }

    /// Writes the selector. `noise` decides on blanks and quotes.
    fn write(&self, noise: &mut impl FnMut() -> u8, text: &mut String) {
        match self {
            Model::All(name) => {
                text.push_str(&format!("{name}({}){}", blank(noise()), blank(noise())));
            }
            Model::Has(name) => {
                text.push_str(&format!("has({}{name}{})", blank(noise()), blank(noise())));
            }
            Model::Compare(name, operator, value) => {
                let operator = if noise().is_multiple_of(2) {
                    operator.replace(' ', blank(noise()))
                } else {
                    (*operator).to_owned()
                };
                text.push_str(&format!("{name} {}{operator}{}", blank(noise()), blank(noise())));
                quote(value, noise(), text);
                text.push_str(blank(noise()));
            }
            Model::Member(name, negated, values) => {
                let not = if *negated { "not" } else { "" };
                text.push_str(&format!("{name} {not}{}in{}{{", blank(noise()), blank(noise())));
                for (i, value) in values.iter().enumerate() {
                    text.push_str(blank(noise()));
                    quote(value, noise(), text);
                    text.push_str(blank(noise()));
                    if i + 1 < values.len() || noise().is_multiple_of(2) {
                        text.push(',');
                    }
                }
                text.push_str(blank(noise()));
                text.push('}');
            }
            Model::Not(operand) => {
                text.push('!');
                text.push_str(blank(noise()));
                operand.write(noise, text);
            }
            Model::Parentheses(operand) => {
                text.push('(');
                text.push_str(blank(noise()));
                operand.write(noise, text);
                text.push(')');
            }
            Model::And(operands) => write_group(operands, "&&", noise, text),
            Model::Or(operands) => write_group(operands, "||", noise, text),
        }
    }

    /// Reports whether a negation directly contains another one, apart from parentheses.
    fn has_nested_negation(&self) -> bool {
        match self {
            Model::Not(operand) => operand.is_negation() || operand.has_nested_negation(),
            Model::Parentheses(operand) => operand.has_nested_negation(),
            Model::And(operands) | Model::Or(operands) => operands.iter().any(Model::has_nested_negation),
            _ => false,
        }
    }

    fn is_negation(&self) -> bool {
        match self {
            Model::Parentheses(operand) => operand.is_negation(),
            other => matches!(other, Model::Not(_)),
        }
    }

    /// Returns the selector as a single condition.
    fn closed(self) -> Model {
        match self {
            Model::And(_) | Model::Or(_) | Model::Not(_) => Model::Parentheses(Box::new(self)),
            other => other,
        }
    }
}

fn blank(noise: u8) -> &'static str {
    ["", " ", "", "\t", "  ", "", " \t", ""][usize::from(noise) % 8]
}

fn quote(value: &str, noise: u8, text: &mut String) {
    let double = !value.contains('"') && (value.contains('\'') || noise.is_multiple_of(2));
    let quote = if double { '"' } else { '\'' };
    text.push(quote);
    text.push_str(value);
    text.push(quote);
}

fn write_group(operands: &[Model], operator: &str, noise: &mut impl FnMut() -> u8, text: &mut String) {
    for (i, operand) in operands.iter().enumerate() {
        if i > 0 {
            text.push_str(&format!("{}{operator}{}", blank(noise()), blank(noise())));
        }
        operand.write(noise, text);
    }
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[xy]{0,3}", 1 => "[\"x ü\n)(&]{0,4}", 1 => "['x|,}]{0,4}"]
}

fn name() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(&NAMES[..])
}

/// Generates a selector with operators nested by the grammar: `||` above `&&` above conditions.
fn model() -> impl Strategy<Value = Model> {
    let leaf = prop_oneof![
        1 => proptest::sample::select(vec!["all", "global"]).prop_map(Model::All),
        3 => name().prop_map(Model::Has),
        5 => (name(), proptest::sample::select(&OPERATORS[..]), value())
            .prop_map(|(name, operator, value)| Model::Compare(name, operator, value)),
        3 => (name(), any::<bool>(), prop::collection::vec(value(), 0..12))
            .prop_map(|(name, negated, values)| Model::Member(name, negated, values)),
    ];
    leaf.prop_recursive(6, 40, 4, |inner| {
        let condition = prop_oneof![
            3 => inner.clone().prop_map(Model::closed),
            2 => inner.prop_map(|operand| Model::Not(Box::new(operand.closed()))),
        ];
        let and = prop::collection::vec(condition.clone(), 2..4).prop_map(Model::And);
        let or = prop::collection::vec(prop_oneof![condition.clone(), and.clone()], 2..4).prop_map(Model::Or);
        prop_oneof![condition, and, or]
    })
}

fn labels() -> impl Strategy<Value = Labels> {
    prop::collection::btree_map(name().prop_map(str::to_owned), value(), 0..5)
}

/// Generates text that is close to a selector, valid or not.
fn almost_selector() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        8 => proptest::sample::select(vec![
            "(", ")", "!", "&&", "||", "==", "!=", "=", "&", "|", "{", "}", ",", " ", "\t", "\n", "has(", "all(", "all()",
            "global()", "has(a)", "a", "in", "not", "not in", "contains", "starts", "with", "ends", "'x'", "\"y\"", "'",
            "\"", "ü", "\u{0}", "a == 'b'", "b in {'c'}",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(word, 0..16).prop_map(|words| words.concat())
}

fn is_within(span: &Range<usize>, text: &str) -> bool {
    span.start <= span.end && text.get(span.clone()).is_some()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn evaluation_agrees_with_the_model(
        model in model(),
        noise in prop::collection::vec(any::<u8>(), 1..40),
        candidates in prop::collection::vec(labels(), 1..12),
    ) {
        let mut noise = noise.into_iter().cycle();
        let mut text = String::new();
        model.write(&mut || noise.next().unwrap_or(0), &mut text);
        let selector = match Selector::parse(&text) {
            Ok(selector) => selector,
            Err(error) => return Err(TestCaseError::fail(error.render(&text))),
        };
        prop_assert_eq!(Selector::validate(&text), Ok(()));

        let reparsed = Selector::parse(selector.canonical()).expect("canonical forms are valid");
        prop_assert_eq!(reparsed == selector, !model.has_nested_negation(), "{}", &text);
        prop_assert_eq!(Selector::parse(reparsed.canonical()), Ok(reparsed.clone()));
        prop_assert!(Selector::from_expr(selector.expr().clone()).is_ok());

        let facts = selector.facts();
        for labels in &candidates {
            let expected = model.holds(labels);
            prop_assert_eq!(selector.matches(labels), expected, "{} {:?}", &text, labels);
            prop_assert_eq!(reparsed.matches(labels), expected, "{} {:?}", &text, labels);
            if expected {
                prop_assert!(facts.is_satisfiable());
                for (label, fact) in facts.iter() {
                    let actual = labels.get(label).map(String::as_str);
                    prop_assert!(fact.allow(actual), "{} {:?} {}", &text, labels, label);
                }
            }
        }
    }

    #[test]
    fn prefixed_selectors_see_prefixed_labels(model in model(), labels in labels()) {
        let mut text = String::new();
        model.write(&mut || 0, &mut text);
        let prefixed = Selector::parse(&text).expect("valid").with_label_prefix("pcns.");
        let labels_prefixed: Labels = labels.iter().map(|(name, value)| (format!("pcns.{name}"), value.clone())).collect();
        prop_assert_eq!(prefixed.matches(&labels_prefixed), model.holds(&labels));
        prefixed.expr().visit(&mut |expr: &Expr| {
            assert!(expr.label().is_none_or(|label| label.starts_with("pcns.")));
        });
    }

    #[test]
    fn a_difference_matches_its_written_form(selected in model(), excepted in model(), labels in labels()) {
        let written = |model: &Model| {
            let mut text = String::new();
            model.write(&mut || 0, &mut text);
            text
        };
        let (selected, excepted) = (written(&selected), written(&excepted));
        let parse = |text: &str| Selector::parse(text).expect("valid");
        let difference = parse(&selected).and_not(&parse(&excepted));
        let spelt = parse(&format!("({selected}) && (!({excepted}))"));
        prop_assert_eq!(difference.id(), spelt.id());
        prop_assert_eq!(difference.matches(&labels), spelt.matches(&labels));
        prop_assert_eq!(spelt.text(), format!("({selected}) && (!({excepted}))"));
    }

    #[test]
    fn any_text_gives_a_selector_or_an_error_with_a_place(text in prop_oneof![almost_selector(), any::<String>()]) {
        let parsed = Selector::parse(&text);
        prop_assert_eq!(Selector::validate(&text), parsed.clone().map(drop));
        match parsed {
            Ok(selector) => {
                let reparsed = Selector::parse(selector.canonical()).expect("canonical forms are valid");
                prop_assert_eq!(Selector::parse(reparsed.canonical()), Ok(reparsed));
            }
            Err(error) => {
                prop_assert!(is_within(&error.span(), &text), "{:?} {:?}", error, &text);
                prop_assert!(!error.to_string().contains('\n'));
                prop_assert!(error.render(&text).lines().count() <= 2);
                if *error.kind() == ParseErrorKind::UnclosedParenthesis {
                    prop_assert_eq!(&text[error.span()], "(");
                }
            }
        }
    }
}
