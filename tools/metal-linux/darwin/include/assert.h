#pragma once
_Noreturn void __assert_rtn(const char*, const char*, int, const char*);
#ifdef NDEBUG
#define assert(e) ((void)0)
#else
#define assert(e) ((e) ? (void)0 : __assert_rtn(__func__, __FILE__, __LINE__, #e))
#endif
#define static_assert _Static_assert
