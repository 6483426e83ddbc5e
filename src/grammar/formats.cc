#include "grammar/formats.h"

namespace firesteel::grammar {

namespace {

// Days by month; 29 February in leap years only.
const std::string kDate =
    R"((\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))"
    R"(|(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29))";
const std::string kTime = R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
const std::string kOctet = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
const std::string kIpv4 = kOctet + R"(\.)" + kOctet + R"(\.)" + kOctet + R"(\.)" + kOctet;
// At most 4 labels of at most 59 characters: within a host name's 63 and 253. Written so that it is certain
// at every character where a repetition ends, which keeps masks cheap.
const std::string kLabel = "[A-Za-z0-9]{1,24}(-[A-Za-z0-9]{1,6}){0,5}";
const std::string kHostname = kLabel + R"((\.)" + kLabel + "){0,3}";
const std::string kFreeLabel = "[A-Za-z0-9]+(-+[A-Za-z0-9]+)*";  // without limits
const std::string kFreeHost = kFreeLabel + R"((\.)" + kFreeLabel + ")*";
const std::string kAtom = R"([A-Za-z0-9!#$%&'*+/=?^_`{|}~-])";
const std::string kPathChar = R"(([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}))";
const std::string kTail = R"((\?()" + kPathChar + R"(|[/?])*)?(#()" + kPathChar + R"(|[/?])*)?)";
const std::string kPath = "(/" + kPathChar + "*)*";
const std::string kUri = R"([A-Za-z][A-Za-z0-9+.-]*://)" + kFreeHost + R"((:\d{1,5})?)" + kPath + kTail;
const std::string kPointer = "(/([^/~]|~[01])*)*";

std::string ipv6() {
  const std::string h = "[0-9A-Fa-f]{1,4}", c = "(:" + h + ")";
  std::string out = "(" + h + c + "{7}";
  // n groups, "::", then at most 6 − n groups (one group more would leave nothing for "::" to stand for).
  for (int before = 0; before <= 7; ++before) {
    out += "|";
    if (before == 0) {
      out += ":";
    } else {
      out += h + c + "{" + std::to_string(before - 1) + "}" + (before == 7 ? "::" : ":");
    }
    if (before < 7)
      out += before == 6 ? "(:" + h + "|:)" : "(" + c + "{1," + std::to_string(7 - before) + "}|:)";
  }
  return out + ")";
}

std::string duration() {
  const std::string n = R"(\d{1,9})";
  const std::string time = "T(" + n + "H(" + n + "M)?(" + n + "S)?|" + n + "M(" + n + "S)?|" + n + "S)";
  const std::string date = "(" + n + "Y(" + n + "M)?(" + n + "D)?|" + n + "M(" + n + "D)?|" + n + "D)";
  return "P(" + date + "(" + time + ")?|" + time + "|" + n + "W)";
}

}  // namespace

std::string format_pattern(std::string_view format) {
  if (format == "date") return kDate;
  if (format == "time") return kTime;
  if (format == "date-time") return kDate + "T" + kTime;
  if (format == "duration") return duration();
  if (format == "email") return kAtom + R"(+(\.)" + kAtom + "+)*@(" + kFreeLabel + R"(\.)+)" + kFreeLabel;
  if (format == "hostname") return kHostname;
  if (format == "ipv4") return kIpv4;
  if (format == "ipv6") return ipv6();
  if (format == "uuid") return "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}";
  if (format == "uri") return kUri;
  if (format == "uri-reference") return "(" + kUri + "|" + kPath + kTail + ")";
  if (format == "uri-template")
    return R"(([A-Za-z0-9._~!$&()*+,;=:@/?#-]|%[0-9A-Fa-f]{2}|\{[+#./;?&]?[A-Za-z0-9_]+(,[A-Za-z0-9_]+)*\})*)";
  if (format == "json-pointer") return kPointer;
  if (format == "relative-json-pointer") return R"((0|[1-9]\d{0,8})(#|)" + kPointer + ")";
  return "";
}

}  // namespace firesteel::grammar
