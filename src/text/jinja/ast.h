// The parsed template. Immutable after parse and shared by all threads that render it, so it holds plain
// text, no Values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace firesteel::jinja {

/// Nesting of blocks and parentheses in a source, and of nodes in its tree.
inline constexpr int kMaxSourceDepth = 300;
inline constexpr int kMaxTreeDepth = 300;

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind : uint8_t {
  kNone,
  kBool,       // integer
  kInteger,    // integer
  kFloat,      // real
  kString,     // text; constant is its place in the rendering's table of constants
  kName,       // name_id
  kList,       // children
  kTuple,      // children
  kDict,       // children: key, value, key, value, …
  kAttribute,  // children[0]; text
  kItem,       // children[0], children[1]
  kSlice,      // children: start, stop, step, each may be null; only as the index of a kItem
  kCall,       // children[0] is called; args
  kFilter,     // children[0] (null in a filter block: the block's text); text; args
  kTest,       // children[0]; text; args
  kNot,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kCondition,   // children: condition, then, else (may be null)
  kCompare,     // children: first, then one per entry of operators
  kConcat,      // children
  kArithmetic,  // operators[0]; two children
};

enum class Op : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star, star_star;
};

struct Expr {
  ExprKind kind = ExprKind::kNone;
  int line = 0;
  int depth = 1;
  int64_t integer = 0;
  double real = 0;
  int name_id = -1;
  int constant = -1;
  std::string text;
  std::vector<ExprPtr> children;
  std::vector<Op> operators;
  std::unique_ptr<CallArgs> args;
};

/// What `set`, `for` and `with` assign to: a name, an attribute of a namespace, or a tuple of targets.
struct Target {
  enum class Kind : uint8_t { kName, kNamespace, kTuple } kind = Kind::kName;
  int name_id = -1;
  std::string attribute;
  std::vector<Target> items;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

enum class StmtKind : uint8_t {
  kText,         // text, the template's own bytes
  kOutput,       // exprs
  kIf,           // exprs[i] guards blocks[i]; a last block without a guard is the else
  kFor,          // target in exprs[0]; exprs[1] is the filter or null; blocks[0], blocks[1] is the else
  kSet,          // target = exprs[0]
  kSetBlock,     // target = text of blocks[0], through the filter exprs[0] (may be null)
  kMacro,        // macro
  kCallBlock,    // exprs[0] is the call; macro is the caller
  kFilterBlock,  // exprs[0]; blocks[0]
  kWith,         // targets = exprs; blocks[0]
  kScope,        // blocks[0] in a scope of its own
  kBreak,
  kContinue,
};

struct MacroNode {
  std::string name;
  int name_id = -1;
  std::vector<int> parameters;  // name ids
  std::vector<std::string> parameter_names;
  std::vector<ExprPtr> defaults;  // of the last defaults.size() parameters
  Block body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  std::string text;
  Target target;
  std::vector<Target> targets;
  std::vector<ExprPtr> exprs;
  std::vector<Block> blocks;
  std::unique_ptr<MacroNode> macro;
};

struct Template {
  Block body;
  std::vector<std::string> names;  // by name id
  int constants = 0;
  // Names that the renderer binds itself.
  int loop_name = -1, varargs_name = -1, kwargs_name = -1, caller_name = -1;
};

}  // namespace firesteel::jinja
