// Stands in for the toolkit's: enough to pass a number.
#pragma once
struct __half {
    _Float16 value;
    __half() = default;
    explicit __half(float from) : value(static_cast<_Float16>(from)) {}
};
