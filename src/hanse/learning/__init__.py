"""Models, local training by several engines that agree, evaluation of many models at once."""
