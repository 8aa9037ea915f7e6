// Package console tests the web pages in Chromium, as a user of "byre console" sees them.
package console
