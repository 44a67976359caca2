//! An upper bound for the memory of a compiled pattern, from its syntax tree. The figures are measured with the compiler
//! of `regex-automata` 0.4; a test compares them with what it allocates. Must not read Unicode tables.

use regex_syntax::ast::{
    Ast, ClassPerlKind, ClassSet, ClassSetBinaryOp, ClassSetItem, Flag, FlagsItemKind,
    RepetitionKind, RepetitionRange,
};

/// What every program takes: the engines, and tables that do not depend on the pattern.
const PROGRAM: usize = 2 * 1024;
/// A state of the program: a byte, an assertion or a branch.
const STATE: usize = 32;
/// A literal character beyond ASCII, or one without regard to case, which may be a class of several sequences.
const CHARACTER: usize = 192;
/// A range of a class in ASCII, and one beyond.
const ASCII_RANGE: usize = 64;
const UNICODE_RANGE: usize = 1024;
/// Any character, or any but some: all of UTF-8.
const ANY: usize = 768;
/// `\d` and `\D`.
const DIGITS: usize = 3 * 1024;
/// The largest classes of Unicode, such as `\w`.
const UNICODE_CLASS: usize = 20 * 1024;

/// Returns the upper bound in bytes.
pub(super) fn of(syntax: &Ast) -> usize {
    let mut walk = Walk {
        ignores_case: false,
    };
    walk.ignores_case = walk.has_flag(syntax);
    PROGRAM.saturating_add(walk.cost(syntax))
}

/// A walk over a syntax tree. The parser limits its depth.
struct Walk {
    /// Whether any part of the pattern has the flag `i`.
    ignores_case: bool,
}

impl Walk {
    fn has_flag(&self, syntax: &Ast) -> bool {
        let sets = |items: &[regex_syntax::ast::FlagsItem]| {
            let mut kinds = items.iter().map(|item| &item.kind);
            kinds.any(|kind| *kind == FlagsItemKind::Flag(Flag::CaseInsensitive))
        };
        match syntax {
            Ast::Flags(flags) => sets(&flags.flags.items),
            Ast::Group(group) => {
                group.flags().is_some_and(|flags| sets(&flags.items)) || self.has_flag(&group.ast)
            }
            Ast::Repetition(repetition) => self.has_flag(&repetition.ast),
            Ast::Alternation(all) => all.asts.iter().any(|one| self.has_flag(one)),
            Ast::Concat(all) => all.asts.iter().any(|one| self.has_flag(one)),
            _ => false,
        }
    }

    fn cost(&self, syntax: &Ast) -> usize {
        match syntax {
            Ast::Empty(_) | Ast::Flags(_) | Ast::Assertion(_) => STATE,
            Ast::Literal(literal) => self.literal(literal.c),
            Ast::Dot(_) => ANY,
            Ast::ClassUnicode(_) => UNICODE_CLASS,
            Ast::ClassPerl(class) => perl(&class.kind),
            Ast::ClassBracketed(class) => {
                let negation = if class.negated { ANY } else { 0 };
                self.class(&class.kind).saturating_add(negation)
            }
            Ast::Repetition(repetition) => {
                let copies = match &repetition.op.kind {
                    RepetitionKind::ZeroOrOne
                    | RepetitionKind::ZeroOrMore
                    | RepetitionKind::OneOrMore => 1,
                    RepetitionKind::Range(range) => match range {
                        RepetitionRange::Exactly(count) | RepetitionRange::AtLeast(count) => *count,
                        RepetitionRange::Bounded(_, most) => *most,
                    },
                };
                let copies = usize::try_from(copies).unwrap_or(usize::MAX).max(1);
                let one = self.cost(&repetition.ast).saturating_add(3 * STATE);
                one.saturating_mul(copies)
            }
            Ast::Group(group) => self.cost(&group.ast).saturating_add(STATE),
            Ast::Alternation(all) => self.sum(&all.asts, 3 * STATE),
            Ast::Concat(all) => self.sum(&all.asts, 0),
        }
    }

    fn sum(&self, all: &[Ast], each: usize) -> usize {
        let costs = all.iter().map(|one| self.cost(one).saturating_add(each));
        costs.fold(0, usize::saturating_add)
    }

    fn literal(&self, character: char) -> usize {
        if character.is_ascii() && !self.ignores_case {
            STATE
        } else {
            CHARACTER
        }
    }

    fn class(&self, set: &ClassSet) -> usize {
        match set {
            ClassSet::Item(item) => self.item(item),
            ClassSet::BinaryOp(ClassSetBinaryOp { lhs, rhs, .. }) => {
                self.class(lhs).saturating_add(self.class(rhs))
            }
        }
    }

    fn item(&self, item: &ClassSetItem) -> usize {
        match item {
            ClassSetItem::Empty(_) => 0,
            ClassSetItem::Literal(literal) => self.range(literal.c, literal.c),
            ClassSetItem::Range(range) => self.range(range.start.c, range.end.c),
            ClassSetItem::Ascii(class) if class.negated => ANY,
            ClassSetItem::Ascii(_) => 4 * ASCII_RANGE + self.folded(),
            ClassSetItem::Unicode(_) => UNICODE_CLASS,
            ClassSetItem::Perl(class) => perl(&class.kind),
            ClassSetItem::Bracketed(class) => {
                let negation = if class.negated { ANY } else { 0 };
                self.class(&class.kind).saturating_add(negation)
            }
            ClassSetItem::Union(union) => {
                let costs = union.items.iter().map(|item| self.item(item));
                costs.fold(0, usize::saturating_add)
            }
        }
    }

    /// Returns the cost of a range. Without regard to case, a range beyond ASCII may have holes like a large class.
    fn range(&self, first: char, last: char) -> usize {
        match (first.is_ascii() && last.is_ascii(), first == last) {
            (true, _) => ASCII_RANGE + self.folded(),
            (false, true) => ASCII_RANGE + CHARACTER + self.folded(),
            (false, false) if self.ignores_case => UNICODE_CLASS,
            (false, false) => UNICODE_RANGE,
        }
    }

    /// Returns the cost of the other cases of characters in ASCII, some of which are beyond ASCII.
    fn folded(&self) -> usize {
        if self.ignores_case { 2 * CHARACTER } else { 0 }
    }
}

fn perl(kind: &ClassPerlKind) -> usize {
    match kind {
        ClassPerlKind::Digit => DIGITS,
        ClassPerlKind::Space => 2 * ANY,
        ClassPerlKind::Word => UNICODE_CLASS,
    }
}
