"""Layer 4: traffic, the measured machine, and the roofline that joins them."""
