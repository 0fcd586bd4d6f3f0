// SPDX-License-Identifier: Apache-2.0
// Reads our own pictures back: is it XML, what does it say, and does anything overlap?
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "topology/svg.h"

namespace prunex::topo::test {

struct SvgBox {
  double x, y, width, height;
  std::string text;  // empty: a rectangle

  [[nodiscard]] bool inside(const SvgBox& o) const {
    return x >= o.x - 0.2 && y >= o.y - 0.2 && x + width <= o.x + o.width + 0.2 &&
           y + height <= o.y + o.height + 0.2;
  }
  [[nodiscard]] bool apart(const SvgBox& o) const {
    return x + width <= o.x + 0.2 || o.x + o.width <= x + 0.2 || y + height <= o.y + 0.2 ||
           o.y + o.height <= y + 0.2;
  }
};

struct SvgDocument {
  double width = 0, height = 0;
  std::vector<SvgBox> rects, texts;
  std::string flaw;  // empty: well-formed

  [[nodiscard]] std::string all_text() const {
    std::string out;
    for (const SvgBox& t : texts) {
      out += t.text + "\n";
    }
    return out;
  }
};

class SvgReader {
 public:
  explicit SvgReader(std::string_view xml) : rest_(xml) {}

  SvgDocument read() {
    while (!rest_.empty() && document_.flaw.empty()) {
      rest_.front() == '<' ? tag() : content();
    }
    if (document_.flaw.empty() && !open_.empty()) {
      document_.flaw = open_.back() + " is not closed";
    }
    return std::move(document_);
  }

 private:
  void content() {
    const std::string text = unescape(rest_.substr(0, rest_.find('<')));
    rest_.remove_prefix(std::min(rest_.find('<'), rest_.size()));
    if (!open_.empty() && open_.back() == "text") {
      document_.texts.back().text += text;
      SvgBox& box = document_.texts.back();
      box.width = svg::text_width(box.text, style_);
      box.x -= middle_ ? box.width / 2 : 0;
    }
  }

  std::string unescape(std::string_view text) {
    std::string out;
    while (!text.empty()) {
      if (text.front() != '&') {
        const auto c = static_cast<unsigned char>(text.front());
        if (c < 0x20 && c != '\n') {
          document_.flaw = "a control character in text";
        }
        out.push_back(text.front());
        text.remove_prefix(1);
        continue;
      }
      bool known = false;
      for (const auto& [name, c] : {std::pair{"&amp;", '&'},
                                    {"&lt;", '<'},
                                    {"&gt;", '>'},
                                    {"&quot;", '"'},
                                    {"&#39;", '\''}}) {
        if (text.starts_with(name)) {
          out.push_back(c);
          text.remove_prefix(std::string_view(name).size());
          known = true;
          break;
        }
      }
      if (!known) {
        document_.flaw = "a bare & in text";
        return out;
      }
    }
    return out;
  }

  void tag() {
    const size_t end = rest_.find('>');
    if (end == rest_.npos) {
      document_.flaw = "a tag without end";
      return;
    }
    std::string_view inner = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    if (inner.starts_with('/')) {
      if (open_.empty() || open_.back() != inner.substr(1)) {
        document_.flaw = "unexpected </" + std::string(inner.substr(1)) + ">";
        return;
      }
      if (open_.back() == "g") {
        offsets_.pop_back();
      }
      open_.pop_back();
      return;
    }
    const bool closed = inner.ends_with('/');
    const std::string name(inner.substr(0, inner.find_first_of(" /")));
    start(name, inner);
    if (!closed) {
      open_.push_back(name);
    } else if (name == "g") {
      offsets_.pop_back();
    }
  }

  void start(const std::string& name, std::string_view inner) {
    const auto [dx, dy] = offsets_.empty() ? std::pair{0.0, 0.0} : offsets_.back();
    if (name == "svg") {
      document_.width = number(inner, "width");
      document_.height = number(inner, "height");
    } else if (name == "g") {
      const size_t at = inner.find("translate(");
      char* next = nullptr;
      const std::string arguments(at == inner.npos ? "0 0" : inner.substr(at + 10));
      const double x = std::strtod(arguments.c_str(), &next);
      offsets_.emplace_back(dx + x, dy + std::strtod(next, nullptr));
    } else if (name == "rect") {
      document_.rects.push_back({dx + number(inner, "x"), dy + number(inner, "y"),
                                 number(inner, "width"), number(inner, "height"), ""});
    } else if (name == "text") {
      const double size = number(inner, "font-size");
      style_ = {size, "", inner.find("font-weight") != inner.npos};
      middle_ = inner.find("middle") != inner.npos;
      // From the cap height to just below the baseline.
      document_.texts.push_back(
          {dx + number(inner, "x"), dy + number(inner, "y") - size * 0.8, 0, size, ""});
    }
  }

  static double number(std::string_view inner, const std::string& attribute) {
    const size_t at = inner.find(" " + attribute + "=\"");
    return at == inner.npos
               ? 0
               : std::strtod(std::string(inner.substr(at + attribute.size() + 3)).c_str(), nullptr);
  }

  std::string_view rest_;
  SvgDocument document_;
  std::vector<std::string> open_;
  std::vector<std::pair<double, double>> offsets_;
  svg::TextStyle style_;
  bool middle_ = false;
};

inline SvgDocument read_svg(std::string_view xml) { return SvgReader(xml).read(); }

// Rectangles are apart or nested; lines of text are apart, on the page, and cross no frame.
inline void check_layout(const SvgDocument& d) {
  EXPECT_EQ(d.flaw, "");
  EXPECT_GT(d.texts.size(), 0U);
  const SvgBox page{0, 0, d.width, d.height, ""};
  for (size_t i = 0; i < d.rects.size(); ++i) {
    EXPECT_TRUE(d.rects[i].inside(page)) << "rectangle " << i << " leaves the page";
    for (size_t j = i + 1; j < d.rects.size(); ++j) {
      const SvgBox &a = d.rects[i], &b = d.rects[j];
      EXPECT_TRUE(a.apart(b) || a.inside(b) || b.inside(a)) << "rectangles " << i << " and " << j;
    }
  }
  for (size_t i = 0; i < d.texts.size(); ++i) {
    EXPECT_TRUE(d.texts[i].inside(page)) << d.texts[i].text;
    for (size_t j = i + 1; j < d.texts.size(); ++j) {
      EXPECT_TRUE(d.texts[i].apart(d.texts[j])) << d.texts[i].text << " over " << d.texts[j].text;
    }
    for (const SvgBox& rect : d.rects) {
      EXPECT_TRUE(d.texts[i].apart(rect) || d.texts[i].inside(rect))
          << d.texts[i].text << " crosses a frame";
    }
  }
}

}  // namespace prunex::topo::test
