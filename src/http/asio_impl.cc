// Asio's own non-template code, compiled once instead of in every unit that includes it.
#include <boost/asio/impl/src.hpp>
