#pragma once
#include <stddef.h>
_Noreturn void abort(void), exit(int);
int abs(int), atoi(const char*);
void *calloc(size_t, size_t), free(void*), *malloc(size_t), *realloc(void*, size_t);
void qsort(void*, size_t, size_t, int (*)(const void*, const void*));
void qsort_r(void*, size_t, size_t, void*, int (*)(void*, const void*, const void*));
long strtol(const char*, char**, int);
unsigned long strtoul(const char*, char**, int);
