// Package packages tests what is released: the unit of systemd, the charts, and, with
// "make packages-test", which builds them, the archives, packages and images.
package packages
