//! Setters, in the way of a builder, for types whose literals only this crate writes.

/// Methods that set one field each. `name: field = Type` takes the type itself, `name: field <- Type` whatever converts into it.
macro_rules! setters {
    () => {};
    ($name:ident: $field:ident = $type:ty; $($rest:tt)*) => {
        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[must_use]
        pub fn $name(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
        $crate::ops::setters::setters!($($rest)*);
    };
    ($name:ident: $field:ident <- $type:ty; $($rest:tt)*) => {
        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[must_use]
        pub fn $name(mut self, $field: impl Into<$type>) -> Self {
            self.$field = $field.into();
            self
        }
        $crate::ops::setters::setters!($($rest)*);
    };
}

pub(crate) use setters;
