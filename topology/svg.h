// SPDX-License-Identifier: Apache-2.0
// Pieces of SVG with a known size, put together like boxes of text: rows, columns, frames. Pure.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace prunex::topo::svg {

struct Piece {
  double width = 0, height = 0;
  std::string body;  // drawn from its own upper left corner
};

struct TextStyle {
  double size = 12;
  const char* fill = "#1f2933";
  bool bold = false;
};

struct FrameStyle {
  const char* fill = "#ffffff";
  const char* stroke = "#d0d7de";
  double stroke_width = 1;
  double radius = 8;
  double padding = 12;
  bool dashed = false;
};

[[nodiscard]] std::string escape(std::string_view text);
// Fonts differ between viewers, so this is an upper estimate.
[[nodiscard]] double text_width(std::string_view text, const TextStyle& style);
// Cut with an ellipsis at `max_width`, so that it fits whatever the viewer's font.
[[nodiscard]] Piece text(std::string_view text, const TextStyle& style, double max_width);
// A small filled label; its width follows the text but is at least `min_width`.
[[nodiscard]] Piece badge(std::string_view text, const char* fill, const char* ink,
                          double min_width = 0);

// The same, lower by `y`: lines up text with a badge beside it.
[[nodiscard]] Piece lowered(const Piece& piece, double y);
[[nodiscard]] Piece row(const std::vector<Piece>& pieces, double gap);
[[nodiscard]] Piece column(const std::vector<Piece>& pieces, double gap);
// Rows of at most `max_width`; a piece wider than that stands alone.
[[nodiscard]] Piece wrap(const std::vector<Piece>& pieces, double gap, double max_width);
[[nodiscard]] Piece frame(const Piece& inside, const FrameStyle& style, double min_width = 0,
                          double min_height = 0);
[[nodiscard]] std::string document(const Piece& piece, std::string_view title, double margin);

}  // namespace prunex::topo::svg
