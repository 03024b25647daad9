#pragma once
int isalnum(int), isalpha(int), iscntrl(int), isdigit(int), isgraph(int), islower(int), isprint(int), ispunct(int),
    isspace(int), isupper(int), isxdigit(int), tolower(int), toupper(int);
