#pragma once
#include "kernels/mask.h"
#include <optional>
#include <span>
#include "plugin/base/result.h"
namespace prunex::nccl::codec {
inline std::optional<size_t> encode_mask(const CompiledMask&, std::span<std::byte>) { return std::nullopt; }
inline Result<CompiledMask> decode_mask(std::span<const std::byte>, uint64_t) { return fail(Code::internal, ""); }
}
