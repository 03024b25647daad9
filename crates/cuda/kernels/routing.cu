// Expert choice in three launches, and for few rows in one.

// A warp a row.
KERNEL(route, Routing, 256) {
    begin();
    u32 row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row < a.rows) route_row(a, row);
}

// Grid: (preview parts).
KERNEL(route_coreset, Routing, 1024) {
    begin();
    route_part(a, a.parts[blockIdx.x]);
}

KERNEL(group_rows, Routing, 1024) {
    begin();
    group_pairs(a);
}

// All three for up to CHOSEN_ROWS rows.
KERNEL(choose, Routing, 1024) {
    begin();
    DYNAMIC_SHARED(probs);
    choose_all(a, probs);
}
