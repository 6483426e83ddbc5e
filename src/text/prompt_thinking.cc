// What a request says about thinking, in its several spellings.
#include <array>
#include <limits>

#include "text/prompt.h"

namespace firesteel {

namespace {

using Json = nlohmann::ordered_json;

/// The member, unless it is absent or null.
const Json* member(const Json* object, const char* name) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto it = object->find(name);
  return it == object->end() || it->is_null() ? nullptr : &*it;
}

Refusal refuse(std::string param, std::string message) {
  return Refusal{ErrorCode::kInvalidArgument, std::move(message), std::move(param), "invalid_value"};
}

/// true, false, {"type":"enabled"}, {"type":"disabled"}; nullopt for anything else.
std::optional<bool> read_switch(const Json& v) {
  if (v.is_boolean()) return v.get<bool>();
  const Json* type = member(&v, "type");
  if (type == nullptr || !type->is_string()) return std::nullopt;
  if (*type == "enabled") return true;
  if (*type == "disabled") return false;
  return std::nullopt;
}

class Reader {
 public:
  Reader(const Json& body, Thinking* out, std::vector<std::string>* notes)
      : body_(&body), kwargs_(member(body_, "chat_template_kwargs")), out_(out), notes_(notes) {}

  std::optional<Refusal> run() {
    if (kwargs_ != nullptr && !kwargs_->is_object())
      return refuse("chat_template_kwargs", "chat_template_kwargs must be an object");
    if (auto r = read_level()) return r;
    read_switches();
    if (const Json* clear = member(kwargs_, "clear_thinking")) {
      if (clear->is_boolean()) {
        out_->clear_thinking = clear->get<bool>();
      } else {
        note("chat_template_kwargs.clear_thinking");
      }
    }
    return read_budget();
  }

 private:
  void note(const char* field) {
    if (notes_ != nullptr)
      notes_->push_back(std::string(field) + " has a value that is not understood and was left aside");
  }

  std::optional<Refusal> read_level() {
    const Json* reasoning = member(body_, "reasoning");
    if (reasoning != nullptr && !reasoning->is_object())
      return refuse("reasoning", "reasoning must be an object");
    const std::array<std::pair<const Json*, const char*>, 3> places = {{
        {member(body_, "reasoning_effort"), "reasoning_effort"},
        {member(reasoning, "effort"), "reasoning.effort"},
        {member(kwargs_, "reasoning_effort"), "chat_template_kwargs.reasoning_effort"},
    }};
    const bool has_effort = places[0].first != nullptr;
    for (const auto& [value, param] : places) {
      if (value == nullptr) continue;
      const auto word = value->is_string()
                            ? effort_from_word(value->get_ref<const std::string&>(), out_->effort)
                            : std::nullopt;
      if (!word)
        return refuse(param, std::string(param) + " must be none, minimal, low, medium, high, xhigh or max");
      out_->enabled = word->enabled;
      out_->effort = word->effort;
      break;
    }
    if (const Json* enabled = member(reasoning, "enabled"); enabled != nullptr && !has_effort) {
      if (!enabled->is_boolean()) return refuse("reasoning.enabled", "reasoning.enabled must be a boolean");
      out_->enabled = enabled->get<bool>();
    }
    return std::nullopt;
  }

  void read_switches() {
    if (const Json* v = member(kwargs_, "enable_thinking")) {
      if (v->is_boolean()) {
        out_->enabled = v->get<bool>();
        return;
      }
      note("chat_template_kwargs.enable_thinking");
    }
    const Json* v = member(kwargs_, "thinking");
    const char* field = "chat_template_kwargs.thinking";
    if (v == nullptr) {
      v = member(body_, "thinking");
      field = "thinking";
    }
    if (v == nullptr) return;
    if (const auto on = read_switch(*v)) {
      out_->enabled = *on;
    } else {
      note(field);
    }
  }

  std::optional<Refusal> read_budget() {
    const std::array<std::pair<const Json*, const char*>, 5> places = {{
        {member(body_, "thinking_budget"), "thinking_budget"},
        {member(body_, "thinking_token_budget"), "thinking_token_budget"},
        {member(body_, "thinking_budget_tokens"), "thinking_budget_tokens"},
        {member(member(body_, "thinking"), "budget_tokens"), "thinking.budget_tokens"},
        {member(member(body_, "reasoning"), "max_tokens"), "reasoning.max_tokens"},
    }};
    for (const auto& [value, param] : places) {
      if (value == nullptr) continue;
      const bool fits =
          value->is_number_unsigned()
              ? value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
              : value->is_number_integer() && value->get<int64_t>() >= 0;
      if (!fits) return refuse(param, std::string(param) + " must be an integer of 0 or more");
      if (const auto budget = value->get<int64_t>(); budget > 0) out_->budget = budget;
      break;
    }
    return std::nullopt;
  }

  const Json* body_;
  const Json* kwargs_;
  Thinking* out_;
  std::vector<std::string>* notes_;
};

}  // namespace

std::optional<EffortWord> effort_from_word(std::string_view word, Effort default_effort) {
  if (word == "none") return EffortWord{false, default_effort};
  if (word == "minimal" || word == "low") return EffortWord{true, Effort::kLow};
  if (word == "medium" || word == "high") return EffortWord{true, Effort::kHigh};
  if (word == "xhigh" || word == "max") return EffortWord{true, Effort::kMax};
  return std::nullopt;
}

std::optional<Refusal> read_thinking(const Json& body, Thinking* out, std::vector<std::string>* notes) {
  return Reader(body, out, notes).run();
}

}  // namespace firesteel
