//! A row of the table.

/// A configuration parameter of Felix, or one of Tortie's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Name in configuration files; `FELIX_` before it makes the name of an environment variable.
    pub name: &'static str,
    /// Type in the notation of Felix's struct tags, such as `oneof(Disabled,Strict)` or
    /// `int(1:3000)`.
    pub kind: &'static str,
    /// Default as a configuration file would have it; empty for none.
    pub default: &'static str,
    /// Field of `FelixConfiguration` that sets it.
    pub field: Option<Field>,
    /// Effect in this program.
    pub treatment: Treatment,
    /// Whether only the node itself may set it, and not the datastore.
    pub is_local: bool,
    /// Whether the value `none` is refused where the parameter has an effect.
    pub refuses_none: bool,
    /// Consequence of a value that cannot be read where the parameter has an effect.
    pub bad_value: BadValue,
}

/// Effect of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It does this.
    Used(&'static str),
    /// It does this, and Felix does not have it.
    Own(&'static str),
    /// It locates a datastore, so only the node itself can set it.
    Connection(&'static str),
    /// It describes the cluster (`ClusterInformation`) and has no effect.
    Description,
    /// The calculation reads it of every node, this one included. As this node's parameter it does
    /// nothing more.
    OfNodes(&'static str),
    /// It does nothing, for this reason.
    NotUsed(&'static str),
}

/// Consequence of a value that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadValue {
    /// The default stands, and a warning names the value.
    Default,
    /// The program does not start with it.
    Fatal,
}

/// Field of `FelixConfiguration` (`api/pkg/apis/projectcalico/v3/felixconfig.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// Name below `spec`.
    pub name: &'static str,
    /// Conversion to the text of the parameter.
    pub form: FieldForm,
}

/// Conversion of a field of `FelixConfiguration` to the text of a parameter
/// (`libcalico-go/lib/backend/syncersv1/updateprocessors/felixconfigprocessor.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a reader of fields must know them all")]
pub enum FieldForm {
    /// Text as it is; empty text is absent.
    Text,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Int,
    /// A number or text, as it is.
    Scalar,
    /// A duration, in seconds.
    Seconds,
    /// A duration, in milliseconds.
    Milliseconds,
    /// Texts with commas between them.
    List,
    /// Ports and port ranges with commas between them.
    Ports,
    /// `protocol:port`, `protocol:net:port`; an empty list is `none`.
    ProtoPorts,
    /// `min-max`.
    Range,
    /// `min-max,…`.
    Ranges,
    /// `name=duration,…`.
    HealthTimeouts,
    /// `Field=value,…`, the field's first letter in upper case.
    KeyValues,
    /// `key=value,…`, with a comma at the end.
    TextMap,
}

macro_rules! constructors {
    ($($name:ident $treatment:ident)*) => {
        $(pub(crate) const fn $name(
            name: &'static str,
            kind: &'static str,
            default: &'static str,
            field: Option<Field>,
            effect: &'static str,
        ) -> Parameter {
            let treatment = Treatment::$treatment(effect);
            let is_local = matches!(treatment, Treatment::Connection(_));
            Parameter { field, treatment, is_local, ..description(name, kind, default) }
        })*
    };
}

constructors! { used Used own Own connection Connection of_nodes OfNodes not_used NotUsed }

pub(crate) const fn description(name: &'static str, kind: &'static str, default: &'static str) -> Parameter {
    let (is_local, refuses_none, bad_value) = (false, false, BadValue::Default);
    Parameter { name, kind, default, field: None, treatment: Treatment::Description, is_local, refuses_none, bad_value }
}

#[allow(clippy::unnecessary_wraps, reason = "a row has a field or `None`")]
pub(crate) const fn field(name: &'static str, form: FieldForm) -> Option<Field> {
    Some(Field { name, form })
}

pub(crate) const fn local(parameter: Parameter) -> Parameter {
    Parameter { is_local: true, ..parameter }
}

pub(crate) const fn not_none(parameter: Parameter) -> Parameter {
    Parameter { refuses_none: true, ..parameter }
}

pub(crate) const fn fatal(parameter: Parameter) -> Parameter {
    Parameter { bad_value: BadValue::Fatal, ..parameter }
}
