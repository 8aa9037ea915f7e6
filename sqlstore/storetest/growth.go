package storetest

import (
	"os"
	"strconv"
	"strings"
)

// Growth returns the number of objects that "make growth" asks for; ok is false in other runs.
func Growth() (objects int, ok bool) {
	objects, err := strconv.Atoi(os.Getenv("BYRE_GROWTH"))
	return objects, err == nil
}

// AtScale returns statements that insert 100000 rows, changed to insert as many as "make growth"
// asks for.
func AtScale(statements string) string {
	if objects, ok := Growth(); ok {
		return strings.ReplaceAll(statements, "100000", strconv.Itoa(objects))
	}
	return statements
}
