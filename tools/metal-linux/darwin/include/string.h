#pragma once
#include <stddef.h>
int memcmp(const void*, const void*, size_t), strcmp(const char*, const char*), strncmp(const char*, const char*, size_t);
void *memchr(const void*, int, size_t), *memcpy(void*, const void*, size_t), *memmove(void*, const void*, size_t),
    *memset(void*, int, size_t);
char *strcat(char*, const char*), *strchr(const char*, int), *strcpy(char*, const char*), *strncpy(char*, const char*, size_t), *strrchr(const char*, int);
size_t strlen(const char*);
