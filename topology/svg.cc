// SPDX-License-Identifier: Apache-2.0
#include "topology/svg.h"

#include <algorithm>

#include "plugin/base/result.h"

namespace prunex::topo::svg {
namespace {

// Advances in em of DejaVu Sans, the widest of the common sans-serif fonts, rounded up.
double advance(char c) {
  constexpr std::string_view kNarrow = " !'()*,./:;I[]ijl|-frt";
  constexpr std::string_view kWide = "MW@%mwGOQ";
  if (kNarrow.find(c) != kNarrow.npos) {
    return 0.42;
  }
  if (kWide.find(c) != kWide.npos) {
    return 1.0;
  }
  return c >= 'A' && c <= 'Z' ? 0.72 : (static_cast<unsigned char>(c) >= 0x80 ? 1.0 : 0.65);
}

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

// A fixed format whatever the locale: tenths are enough.
std::string number(double value) {
  const auto tenths = static_cast<long long>(value * 10 + 0.5);
  return tenths % 10 == 0 ? strf("%lld", tenths / 10) : strf("%lld.%lld", tenths / 10, tenths % 10);
}

std::string elide(std::string_view text, const TextStyle& style, double max_width) {
  if (text_width(text, style) <= max_width) {
    return std::string(text);
  }
  size_t end = 0, next = 0;  // the longest start that leaves room for the ellipsis
  while (next < text.size()) {
    do {
      ++next;
    } while (next < text.size() && !starts_character(text[next]));
    if (text_width(text.substr(0, next), style) + style.size > max_width) {
      break;
    }
    end = next;
  }
  while (end > 0 && text[end - 1] == ' ') {
    --end;
  }
  return std::string(text.substr(0, end)) + "\xe2\x80\xa6";
}

void place(std::string& out, const Piece& piece, double x, double y) {
  if (!piece.body.empty()) {
    out +=
        "<g transform=\"translate(" + number(x) + " " + number(y) + ")\">" + piece.body + "</g>\n";
  }
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

double text_width(std::string_view text, const TextStyle& style) {
  double em = 0;
  for (const char c : text) {
    em += starts_character(c) ? advance(c) : 0;
  }
  return em * style.size * (style.bold ? 1.1 : 1.0);
}

Piece text(std::string_view content, const TextStyle& style, double max_width) {
  const std::string shown = elide(content, style, max_width);
  Piece piece;
  piece.width = std::min(max_width, text_width(shown, style));
  piece.height = style.size * 1.3;
  piece.body = "<text y=\"" + number(style.size) + "\" font-size=\"" + number(style.size) +
               "\" fill=\"" + style.fill + (style.bold ? "\" font-weight=\"600\">" : "\">") +
               (shown == content ? "" : "<title>" + escape(content) + "</title>") + escape(shown) +
               "</text>";
  return piece;
}

Piece badge(std::string_view content, const char* fill, const char* ink, double min_width) {
  constexpr double kHeight = 18, kPad = 7;
  const TextStyle style{11, ink, true};
  Piece piece;
  piece.width = std::max(min_width, text_width(content, style) + 2 * kPad);
  piece.height = kHeight;
  piece.body = "<rect width=\"" + number(piece.width) + "\" height=\"" + number(kHeight) +
               "\" rx=\"9\" fill=\"" + fill + "\"/><text x=\"" + number(piece.width / 2) +
               "\" y=\"13\" font-size=\"11\" font-weight=\"600\" text-anchor=\"middle\" fill=\"" +
               ink + "\">" + escape(content) + "</text>";
  return piece;
}

Piece lowered(const Piece& piece, double y) {
  Piece out{piece.width, piece.height + y, ""};
  place(out.body, piece, 0, y);
  return out;
}

Piece row(const std::vector<Piece>& pieces, double gap) {
  Piece out;
  for (const Piece& piece : pieces) {
    const double x = out.width + (out.width > 0 ? gap : 0);
    place(out.body, piece, x, 0);
    out.width = x + piece.width;
    out.height = std::max(out.height, piece.height);
  }
  return out;
}

Piece column(const std::vector<Piece>& pieces, double gap) {
  Piece out;
  for (const Piece& piece : pieces) {
    const double y = out.height + (out.height > 0 ? gap : 0);
    place(out.body, piece, 0, y);
    out.width = std::max(out.width, piece.width);
    out.height = y + piece.height;
  }
  return out;
}

Piece wrap(const std::vector<Piece>& pieces, double gap, double max_width) {
  std::vector<Piece> rows, current;
  double width = 0;
  for (const Piece& piece : pieces) {
    if (!current.empty() && width + gap + piece.width > max_width) {
      rows.push_back(row(current, gap));
      current.clear();
      width = 0;
    }
    width += (current.empty() ? 0 : gap) + piece.width;
    current.push_back(piece);
  }
  if (!current.empty()) {
    rows.push_back(row(current, gap));
  }
  return column(rows, gap);
}

Piece frame(const Piece& inside, const FrameStyle& style, double min_width, double min_height) {
  Piece out;
  out.width = std::max(min_width, inside.width + 2 * style.padding);
  out.height = std::max(min_height, inside.height + 2 * style.padding);
  const double half = style.stroke_width / 2;
  out.body = "<rect x=\"" + number(half) + "\" y=\"" + number(half) + "\" width=\"" +
             number(out.width - style.stroke_width) + "\" height=\"" +
             number(out.height - style.stroke_width) + "\" rx=\"" + number(style.radius) +
             "\" fill=\"" + style.fill + "\" stroke=\"" + style.stroke + "\" stroke-width=\"" +
             number(style.stroke_width) +
             (style.dashed ? "\" stroke-dasharray=\"4 3\"/>\n" : "\"/>\n");
  place(out.body, inside, style.padding, style.padding);
  return out;
}

std::string document(const Piece& piece, std::string_view title, double margin) {
  const std::string width = number(piece.width + 2 * margin);
  const std::string height = number(piece.height + 2 * margin);
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" +
                    height + "\" viewBox=\"0 0 " + width + " " + height +
                    "\" role=\"img\" font-family=\"Inter, 'Segoe UI', Roboto, 'Helvetica Neue', "
                    "'DejaVu Sans', Arial, sans-serif\">\n<title>" +
                    escape(title) + "</title>\n<rect width=\"" + width + "\" height=\"" + height +
                    "\" rx=\"12\" fill=\"#ffffff\"/>\n";
  place(out, piece, margin, margin);
  return out + "</svg>\n";
}

}  // namespace prunex::topo::svg
