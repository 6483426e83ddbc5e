// Renders a stream of cases for the oracle test: a JSON line {"template", "variables"} per case on standard
// input, a JSON line {"text"} or {"error"} per case on standard output. Templates are cached by their text.
#include <iostream>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/chat_template.h"

int main() {
  std::map<std::string, firesteel::Result<firesteel::ChatTemplate>> cache;
  std::string line;
  while (std::getline(std::cin, line)) {
    auto input = firesteel::parse_json(line, 200);
    nlohmann::ordered_json output = nlohmann::ordered_json::object();
    if (!input.ok()) {
      output["error"] = input.error().message;
    } else {
      const std::string source = (*input)["template"].get<std::string>();
      auto it = cache.find(source);
      if (it == cache.end())
        it = cache.emplace(source, firesteel::ChatTemplate::parse(source, "template")).first;
      if (!it->second.ok()) {
        output["error"] = it->second.error().message;
      } else if (auto text = it->second->render((*input)["variables"]); text.ok()) {
        output["text"] = text->bytes();
      } else {
        output["error"] = text.error().message;
      }
    }
    std::cout << firesteel::dump_json(output) << "\n";
  }
}
