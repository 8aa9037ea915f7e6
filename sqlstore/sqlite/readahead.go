package sqlite

import (
	"context"
	"io"
	"os"
)

// readAhead reads the file at path from beginning to end, so that the kernel has it in memory.
//
// SQLite's quick_check reads single pages, those of each table from the last to the first, which
// the kernel's read-ahead does not recognize. A file that is not in memory, as after a power
// failure, is checked several times as fast if it is read in order before
// (BenchmarkInspectAfterCrash). Where the file is larger than the memory, this is one more read
// in order. Memory-mapped input (mmap_size) would do the same, but the kernel ends the process
// with SIGBUS where a page can't be read, and the check must report such a page.
//
// The caller has no connection to the file open: to close a file releases the locks that SQLite
// has on it in this process. An error is ignored, because the check meets it too.
func readAhead(ctx context.Context, path string) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	for buffer := make([]byte, 1<<20); ctx.Err() == nil && err == nil; {
		_, err = io.ReadFull(file, buffer)
	}
}
