// The tree of a parsed template.
#pragma once

#include "core/text/template_value.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace luna::text::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : std::uint8_t {
  literal,
  name,
  list,
  tuple,
  dict,         // operands: key, value, key, value, ...
  attribute,    // operand.name
  item,         // operands[0][operands[1]]
  slice,        // operands[0][operands[1]:operands[2]:operands[3]], each of the three may be null
  call,         // operands[0](arguments)
  filter,       // operands[0] | name(arguments)
  test,         // operands[0] is name(arguments)
  unary,        // op operands[0]
  binary,       // operands[0] op operands[1]
  compare,      // operands[0] ops[0] operands[1] ops[1] operands[2] ...
  concat,       // operands, as text, one after the other
  conditional,  // operands[1] if operands[0] else operands[2] (may be null)
  captured,     // the text of the block that a filter is applied to
};

enum class Op : std::uint8_t {
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  logical_and,
  logical_or,
  logical_not,
  negate,
  plus,
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  in,
  not_in,
};

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star;         // *list
  ExprPtr double_star;  // **mapping
};

struct Expr {
  ExprKind kind = ExprKind::literal;
  Op op = Op::add;
  std::uint32_t offset = 0;  // in the source, for messages
  std::uint32_t depth = 1;   // of the tree below; bounded, for recursion over it
  std::string name;
  Value literal;
  std::vector<ExprPtr> operands;
  std::vector<Op> ops;  // of a comparison
  CallArguments arguments;
};

/// What a value is assigned to.
struct Target {
  enum class Kind : std::uint8_t { name, attribute, tuple };
  Kind kind = Kind::name;
  std::string name;
  std::string attribute;  // of a namespace
  std::vector<Target> parts;
};

struct Stmt;
using Body = std::vector<Stmt>;

struct Parameter {
  std::string name;
  ExprPtr otherwise;  // null: none
};

/// A macro, or the body of a call block.
struct MacroCode {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct Branch {
  ExprPtr condition;  // null: else
  Body body;
};

enum class StmtKind : std::uint8_t {
  data,          // text
  print,         // expr
  branches,      // if, elif, else
  loop,          // for target in expr if condition: body, else otherwise
  assign,        // target = expr
  assign_block,  // target = body, through the filters of expr (may be null)
  macro,         // defines `macro`
  call_block,    // expr with `macro` as its caller
  filter_block,  // body through the filters of expr
  with,          // assignments, then body
  scope,         // body in a scope of its own (generation blocks)
  break_loop,
  continue_loop,
};

struct Stmt {
  StmtKind kind = StmtKind::data;
  std::uint32_t offset = 0;
  std::string text;
  ExprPtr expr;
  ExprPtr condition;
  Target target;
  std::vector<Branch> branches;
  Body body;
  Body otherwise;
  std::unique_ptr<MacroCode> macro;
  std::vector<std::pair<Target, ExprPtr>> assignments;
};

}  // namespace luna::text::jinja
