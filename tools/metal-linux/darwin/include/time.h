#pragma once
#define CLOCKS_PER_SEC 1000000
typedef unsigned long clock_t;
typedef long time_t;
clock_t clock(void);
time_t time(time_t*);
