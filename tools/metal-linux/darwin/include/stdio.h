#pragma once
#include <stdarg.h>
#include <stddef.h>
typedef struct __sFILE FILE;
extern FILE *__stdinp, *__stdoutp, *__stderrp;
#define stdin __stdinp
#define stdout __stdoutp
#define stderr __stderrp
#define EOF (-1)
FILE *fdopen(int, const char*), *fopen(const char*, const char*);
size_t fread(void*, size_t, size_t, FILE*), fwrite(const void*, size_t, size_t, FILE*);
int fclose(FILE*), feof(FILE*), ferror(FILE*), fflush(FILE*), fgetc(FILE*), fprintf(FILE*, const char*, ...), fputc(int, FILE*),
    fputs(const char*, FILE*), printf(const char*, ...), snprintf(char*, size_t, const char*, ...),
    sprintf(char*, const char*, ...), ungetc(int, FILE*), vfprintf(FILE*, const char*, va_list),
    vsnprintf(char*, size_t, const char*, va_list);
