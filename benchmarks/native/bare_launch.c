/* The floor of every launch: cuLaunchKernel in a loop, with nothing around it.

   No CUDA header is needed: the driver's function comes as a pointer. */
#include <time.h>

typedef int (*launch_fn)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **params,
                         void **extra);

/* Launches `calls` times and returns the seconds that took, or -1 where the driver refused one. */
double bare_launch(launch_fn launch, void *function, const unsigned *grid, unsigned block, unsigned shared,
                   void *stream, void **params, int calls)
{
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < calls; i++)
        if (launch(function, grid[0], grid[1], grid[2], block, 1, 1, shared, stream, params, 0) != 0)
            return -1;
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}
