//! Enums whose variants have names, such as values of labels in metrics. A name stands beside its variant, and nowhere else.

/// Defines an enum with all its variants and their names.
macro_rules! named {
    (
        $(#[$of_enum:meta])*
        $vis:vis enum $enum:ident {
            $($(#[$of_variant:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$of_enum])*
        $vis enum $enum {
            $($(#[$of_variant])* $variant,)+
        }

        impl $enum {
            /// All of them, in order.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns its name.
            $vis const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

pub(crate) use named;
