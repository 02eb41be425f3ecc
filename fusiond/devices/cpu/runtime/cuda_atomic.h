// <cuda/atomic> on the processor. All scopes are one.
#pragma once

#include <atomic>

#include "atomics.h"

namespace cuda {
namespace std = ::std;
using ::std::memory_order;
using ::std::memory_order_relaxed;
using ::std::memory_order_consume;
using ::std::memory_order_acquire;
using ::std::memory_order_release;
using ::std::memory_order_acq_rel;
using ::std::memory_order_seq_cst;

enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };
// Under ThreadSanitizer every operation orders as acq_rel does: what relies on an order that a program asks for is right,
// and what it fails to ask for is not found.
template <class T, thread_scope Scope = thread_scope_system> class atomic_ref {
public:
    explicit atomic_ref(T& object) : at_(&object) {}
    T load(memory_order = memory_order_seq_cst) const {
        T value;
        __atomic_load(at_, &value, __ATOMIC_ACQUIRE);
        return value;
    }
    void store(T value, memory_order = memory_order_seq_cst) const { __atomic_store(at_, &value, __ATOMIC_RELEASE); }
    T exchange(T value, memory_order = memory_order_seq_cst) const { return change([=](T) { return value; }); }
    bool compare_exchange_strong(T& expected, T value, memory_order = memory_order_seq_cst, memory_order = memory_order_seq_cst) const {
        return __atomic_compare_exchange(at_, &expected, &value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    bool compare_exchange_weak(T& expected, T value, memory_order a = memory_order_seq_cst, memory_order b = memory_order_seq_cst) const {
        return compare_exchange_strong(expected, value, a, b);
    }
    T fetch_add(T value, memory_order = memory_order_seq_cst) const { return change([=](T old) { return (T)(old + value); }); }
    T fetch_sub(T value, memory_order = memory_order_seq_cst) const { return change([=](T old) { return (T)(old - value); }); }
    T fetch_and(T value, memory_order = memory_order_seq_cst) const { return change([=](T old) { return (T)(old & value); }); }
    T fetch_or(T value, memory_order = memory_order_seq_cst) const { return change([=](T old) { return (T)(old | value); }); }
    T fetch_xor(T value, memory_order = memory_order_seq_cst) const { return change([=](T old) { return (T)(old ^ value); }); }
    T fetch_min(T value, memory_order = memory_order_seq_cst) const { return change([=](T old) { return value < old ? value : old; }); }
    T fetch_max(T value, memory_order = memory_order_seq_cst) const { return change([=](T old) { return old < value ? value : old; }); }
    operator T() const { return load(); }
    T operator=(T value) const { store(value); return value; }
    T operator+=(T value) const { return fetch_add(value) + value; }
    T operator-=(T value) const { return fetch_sub(value) - value; }
    T operator++() const { return fetch_add(1) + 1; }
    T operator++(int) const { return fetch_add(1); }
    T operator--() const { return fetch_sub(1) - 1; }
    T operator--(int) const { return fetch_sub(1); }

protected:
    T* at_;
    template <class F> T change(F next) const {
        T old = load();
        T value = next(old);
        while (!__atomic_compare_exchange(at_, &old, &value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) value = next(old);
        return old;
    }
};

template <class T, thread_scope Scope = thread_scope_system> class atomic {
public:
    atomic() = default;
    constexpr atomic(T value) : value_(value) {}
    atomic(const atomic&) = delete;
#define FUSIOND_FORWARD(name) \
    template <class... A> auto name(A... a) { return atomic_ref<T, Scope>(value_).name(a...); }
    FUSIOND_FORWARD(load) FUSIOND_FORWARD(store) FUSIOND_FORWARD(exchange) FUSIOND_FORWARD(fetch_add)
    FUSIOND_FORWARD(fetch_sub) FUSIOND_FORWARD(fetch_and) FUSIOND_FORWARD(fetch_or) FUSIOND_FORWARD(fetch_xor)
    FUSIOND_FORWARD(fetch_min) FUSIOND_FORWARD(fetch_max)
#undef FUSIOND_FORWARD
    template <class... A> bool compare_exchange_strong(T& expected, A... a) {
        return atomic_ref<T, Scope>(value_).compare_exchange_strong(expected, a...);
    }
    template <class... A> bool compare_exchange_weak(T& expected, A... a) { return compare_exchange_strong(expected, a...); }
    operator T() { return load(); }
    T operator=(T value) { store(value); return value; }
    T operator+=(T value) { return fetch_add(value) + value; }
    T operator++() { return fetch_add(1) + 1; }
    T operator++(int) { return fetch_add(1); }

private:
    T value_;
};

inline void atomic_thread_fence(memory_order, thread_scope = thread_scope_system) { ::__threadfence(); }

}  // namespace cuda
